#include "penstock/model/gpu_ops.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/gpu/gelu.h"
#include "penstock/gpu/norm.h"
#include "penstock/gpu/sums.h"

namespace penstock::model {

namespace {

gpu::Gemm make_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d) {
  require_dense(a);
  require_dense(b);
  require_dense(d);
  return {.rows = d.size(0),
          .columns = d.size(1),
          .type = gpu_type(a.scalar_type()),
          .a = a.const_data_ptr(),
          .b = b.const_data_ptr(),
          .d = d.data_ptr(),
          .d_type = gpu_type(d.scalar_type())};
}

std::string shape_key(const char* what, const at::Tensor& x, const at::Tensor& weight) {
  return cat(what,
             " ",
             x.size(0),
             "x",
             weight.size(0),
             "x",
             weight.size(1),
             " ",
             toString(x.scalar_type()));
}

}  // namespace

at::Tensor GpuOps::linear(const at::Tensor& x,
                          const at::Tensor& weight,
                          const at::Tensor& bias,
                          const at::Tensor& residual) const {
  const at::Tensor out = at::empty({x.size(0), weight.size(1)}, x.options());
  gpu::Gemm gemm = make_gemm(x, weight, out);
  gemm.depth = weight.size(0);
  gemm.bias = bias.const_data_ptr();
  if (residual.defined()) {
    require_dense(residual);
    gemm.addend = residual.const_data_ptr();
  }
  context_->gemms().run(gemm, context_->compute());
  return out;
}

GpuOps::Activated GpuOps::linear_gelu(const at::Tensor& x,
                                      const at::Tensor& weight,
                                      const at::Tensor& bias,
                                      bool keeps_hidden) const {
  const auto fused = [&] {
    Activated made{at::empty({x.size(0), weight.size(1)}, x.options()), {}};
    if (keeps_hidden) {
      made.hidden = at::empty_like(made.activated);
    }
    gpu::Gemm gemm = make_gemm(x, weight, made.activated);
    gemm.depth = weight.size(0);
    gemm.bias = bias.const_data_ptr();
    gemm.epilogue = gpu::Gemm::Epilogue::Gelu;
    gemm.auxiliary = keeps_hidden ? made.hidden.data_ptr() : nullptr;
    context_->gemms().run(gemm, context_->compute());
    return made;
  };
  const auto apart = [&] {
    Activated made{{}, linear(x, weight, bias)};
    if (keeps_hidden) {
      made.activated = gelu(made.hidden);
    } else {
      gpu::gelu(gpu_type(x.scalar_type()),
                made.hidden.const_data_ptr(),
                made.hidden.data_ptr(),
                made.hidden.numel(),
                context_->compute());
      made.activated = std::move(made.hidden);
    }
    return made;
  };
  // cuBLASLt has these epilogues for 16-bit types alone.
  if (context_->options().is_deterministic || x.scalar_type() == at::kFloat) {
    return apart();
  }
  const std::string key = shape_key(keeps_hidden ? "gelu, kept" : "gelu", x, weight);
  const bool is_fused = context_->prefers_first(
      key, [&] { fused(); }, [&] { apart(); });
  return is_fused ? fused() : apart();
}

at::Tensor GpuOps::gelu(const at::Tensor& hidden) const {
  const at::Tensor out = at::empty_like(hidden);
  require_dense(hidden);
  gpu::gelu(gpu_type(hidden.scalar_type()),
            hidden.const_data_ptr(),
            out.data_ptr(),
            hidden.numel(),
            context_->compute());
  return out;
}

at::Tensor GpuOps::linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight) const {
  const at::Tensor out = at::empty({dy.size(0), weight.size(0)}, dy.options());
  gpu::Gemm gemm = make_gemm(dy, weight, out);
  gemm.depth = weight.size(1);
  gemm.is_b_transposed = true;
  context_->gemms().run(gemm, context_->compute());
  return out;
}

at::Tensor GpuOps::linear_gelu_input_gradient(const at::Tensor& dy,
                                              const at::Tensor& weight,
                                              const at::Tensor& hidden,
                                              const at::Tensor& bias_gradient) const {
  const auto fused = [&](bool adds_bias) {
    const at::Tensor out = at::empty_like(hidden);
    gpu::Gemm gemm = make_gemm(dy, weight, out);
    gemm.depth = weight.size(1);
    gemm.is_b_transposed = true;
    gemm.epilogue = gpu::Gemm::Epilogue::GeluBackward;
    gemm.auxiliary = hidden.data_ptr();
    context_->gemms().run(gemm, context_->compute());
    if (adds_bias) {
      add_bias_gradient(bias_gradient, out);
    }
    return out;
  };
  const auto apart = [&](const at::Tensor& bias) {
    const at::Tensor out = linear_input_gradient(dy, weight);
    const at::Tensor workspace = floats_like(out, gpu::gelu_backward_workspace_floats(out.size(1)));
    gpu::gelu_backward({.type = gpu_type(out.scalar_type()),
                        .dy = out.const_data_ptr(),
                        .x = hidden.const_data_ptr(),
                        .dx = out.data_ptr(),
                        .bias_gradient = bias.data_ptr<float>(),
                        .workspace = workspace.data_ptr<float>(),
                        .rows = out.size(0),
                        .width = out.size(1)},
                       context_->compute());
    return out;
  };
  if (context_->options().is_deterministic || dy.scalar_type() == at::kFloat) {
    return apart(bias_gradient);
  }
  const bool is_fused = context_->prefers_first(
      shape_key("gelu backward", dy, weight),
      [&] {
        const at::Tensor out = fused(false);
        add_bias_gradient(at::empty_like(bias_gradient), out);
      },
      [&] { apart(at::empty_like(bias_gradient)); });
  return is_fused ? fused(true) : apart(bias_gradient);
}

void GpuOps::add_weight_gradient(const at::Tensor& weight_gradient,
                                 const at::Tensor& x,
                                 const at::Tensor& dy,
                                 bool overwrites) const {
  gpu::Gemm gemm = make_gemm(x, dy, weight_gradient);
  gemm.depth = x.size(0);
  gemm.is_a_transposed = true;
  gemm.addend = overwrites ? nullptr : gemm.d;
  context_->gemms().run(gemm, context_->compute());
}

void GpuOps::add_bias_gradient(const at::Tensor& bias_gradient, const at::Tensor& dy) const {
  require_dense(dy);
  const at::Tensor workspace = floats_like(dy, gpu::column_sums_workspace_floats(dy.size(1)));
  gpu::add_column_sums({.type = gpu_type(dy.scalar_type()),
                        .x = dy.const_data_ptr(),
                        .rows = dy.size(0),
                        .width = dy.size(1),
                        .stride = dy.size(1),
                        .out = bias_gradient.data_ptr<float>(),
                        .workspace = workspace.data_ptr<float>()},
                       context_->compute());
}

GpuOps::Normed GpuOps::norm(const at::Tensor& x,
                            const at::Tensor& scale,
                            const at::Tensor& shift) const {
  require_dense(x);
  const int64_t rows = x.numel() / x.size(-1);
  Normed made{at::empty_like(x), floats_like(x, rows), floats_like(x, rows)};
  gpu::layer_norm({.type = gpu_type(x.scalar_type()),
                   .x = x.const_data_ptr(),
                   .scale = scale.const_data_ptr<float>(),
                   .shift = shift.const_data_ptr<float>(),
                   .out = made.out.data_ptr(),
                   .mean = made.mean.data_ptr<float>(),
                   .inverse_deviation = made.inverse_deviation.data_ptr<float>(),
                   .rows = rows,
                   .width = x.size(-1)},
                  context_->compute());
  return made;
}

at::Tensor GpuOps::norm_backward(const NormBackward& saved,
                                 at::Tensor dy,
                                 const at::Tensor& residual_gradient,
                                 const NormGradients& gradients) const {
  require_dense(dy);
  const int64_t width = saved.x.size(-1);
  const at::Tensor workspace = floats_like(dy, gpu::norm_backward_workspace_floats(width));
  gpu::layer_norm_backward(
      {.type = gpu_type(dy.scalar_type()),
       .dy = dy.const_data_ptr(),
       .x = saved.x.const_data_ptr(),
       .scale = saved.scale.const_data_ptr<float>(),
       .mean = saved.mean.const_data_ptr<float>(),
       .inverse_deviation = saved.inverse_deviation.const_data_ptr<float>(),
       .residual_gradient =
           residual_gradient.defined() ? residual_gradient.const_data_ptr() : nullptr,
       .dx = dy.data_ptr(),
       .scale_gradient = gradients.scale.data_ptr<float>(),
       .shift_gradient = gradients.shift.data_ptr<float>(),
       .dx_column_sums = gradients.dx_column_sums.defined()
                             ? gradients.dx_column_sums.data_ptr<float>()
                             : nullptr,
       .workspace = workspace.data_ptr<float>(),
       .rows = dy.numel() / width,
       .width = width},
      context_->compute());
  return dy.view(saved.x.sizes());
}

namespace {

gpu::AttentionShape attention_shape(const TensorShape& qkv,
                                    const HeadCounts& heads,
                                    bool is_deterministic) {
  return {.type = gpu_type(qkv.type),
          .samples = qkv.sizes[0],
          .tokens = qkv.sizes[1],
          .heads = heads.queries,
          .head_width = heads.width_of(qkv.sizes[2]),
          .is_deterministic = is_deterministic,
          .kv_heads = heads.keys};
}

TensorShape shape_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.scalar_type()};
}

}  // namespace

bool GpuOps::has_statistics(const TensorShape& qkv, const HeadCounts& heads, bool has_dropout) {
  return !has_dropout && gpu::can_attend(attention_shape(qkv, heads, /*is_deterministic=*/false));
}

GpuOps::Mixed GpuOps::attend(const at::Tensor& qkv,
                             const HeadCounts& heads,
                             const Dropout& dropout) const {
  require_dense(qkv);
  const gpu::AttentionShape shape =
      attention_shape(shape_of(qkv), heads, context_->options().is_deterministic);
  // Generation asks for one more token each time, and to build a kernel for each takes long.
  const bool is_odd_job = !dropout.pass.is_training && qkv.size(0) == 1 && qkv.size(1) % 64 != 0;
  if (dropout.is_active() || is_odd_job || !gpu::can_attend(shape)) {
    return {attend_by_sample(qkv, heads, dropout, /*keeps_all=*/false).values, {}};
  }
  const int64_t rows = qkv.size(0) * qkv.size(1);
  Mixed mixed{at::empty({rows, heads.queries * shape.head_width}, qkv.options()),
              floats_like(qkv, rows * heads.queries)};
  const at::Tensor workspace =
      bytes_like(qkv, context_->attention().forward_workspace_bytes(shape));
  context_->attention().forward(shape,
                                {.qkv = qkv.const_data_ptr(),
                                 .values = mixed.values.data_ptr(),
                                 .statistics = mixed.statistics.data_ptr<float>(),
                                 .workspace = workspace.data_ptr()},
                                context_->compute());
  return mixed;
}

at::Tensor GpuOps::attend_backward(at::Tensor qkv,
                                   Mixed mixed,
                                   at::Tensor values_gradient,
                                   const HeadCounts& heads,
                                   const Dropout& dropout) const {
  const int64_t rows = qkv.size(0) * qkv.size(1);
  if (!mixed.statistics.defined()) {
    mixed.values.reset();
    return attend_by_sample_backward(std::move(qkv), {}, values_gradient, heads, dropout)
        .view({rows, -1});
  }
  const gpu::AttentionShape shape =
      attention_shape(shape_of(qkv), heads, context_->options().is_deterministic);
  const at::Tensor gradient = at::empty_like(qkv);
  const at::Tensor workspace =
      bytes_like(qkv, context_->attention().backward_workspace_bytes(shape));
  context_->attention().backward(shape,
                                 {.qkv = qkv.const_data_ptr(),
                                  .values = mixed.values.const_data_ptr(),
                                  .values_gradient = values_gradient.const_data_ptr(),
                                  .statistics = mixed.statistics.const_data_ptr<float>(),
                                  .qkv_gradient = gradient.data_ptr(),
                                  .workspace = workspace.data_ptr()},
                                 context_->compute());
  return gradient.view({rows, -1});
}

}  // namespace penstock::model
