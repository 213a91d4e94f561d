#include "penstock/checkpoint/tensor_shards.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/checkpoint/stretches.h"
#include "penstock/checkpoint/together.h"
#include "penstock/comm/group.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

// What goes through host memory at a time. Plain vectors hold it, not tensors: a limit of the
// training does not know of it.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += cat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

void check_shard(const TensorShard& shard) {
  PENSTOCK_CHECK(
      shard.flat.dim() == 1 && shard.flat.is_contiguous() && shard.flat.scalar_type() == at::kFloat,
      "a shard of ",
      shard.tensor,
      " that is no flat float32");
}

at::Tensor view_of(std::span<float> floats) {
  return at::from_blob(floats.data(), {static_cast<int64_t>(floats.size())}, at::kFloat);
}

// Calls `visit` with stretches of a tensor, flat, one after the other.
void by_parts(const at::Tensor& flat,
              const std::function<void(int64_t first, const at::Tensor& part)>& visit) {
  for (int64_t first = 0; first < flat.numel(); first += kElementsAtOnce) {
    visit(first, flat.narrow(0, first, std::min(kElementsAtOnce, flat.numel() - first)));
  }
}

struct PlacedShard {
  const TensorEntry* entry;
  const TensorShard* shard;
};

// In the order of the file, so that neighbours are summed as one.
std::vector<PlacedShard> in_order(const SafetensorsLayout& layout,
                                  const std::vector<TensorShard>& shards) {
  std::vector<PlacedShard> placed;
  for (const TensorShard& shard : shards) {
    placed.push_back({&layout.find(shard.tensor), &shard});
  }
  std::sort(placed.begin(), placed.end(), [](const PlacedShard& a, const PlacedShard& b) {
    return std::pair(a.entry->begin, a.shard->first) < std::pair(b.entry->begin, b.shard->first);
  });
  return placed;
}

void write_shard(SafetensorsWriter& writer, const TensorEntry& entry, const TensorShard& shard) {
  PENSTOCK_CHECK(shard.flat.dim() == 1 && shard.flat.is_contiguous() &&
                     dtype_of(shard.flat.scalar_type()) == entry.dtype,
                 "a shard of ",
                 shard.tensor,
                 " that is not flat, or of another type than its file");
  const size_t element = shard.flat.element_size();
  std::vector<std::byte> staged;
  by_parts(shard.flat, [&](int64_t first, const at::Tensor& part) {
    const void* data = nullptr;
    if (part.is_cpu()) {
      data = part.const_data_ptr();
    } else {
      staged.resize(part.nbytes());
      at::from_blob(staged.data(), part.sizes(), part.scalar_type()).copy_(part);
      data = staged.data();
    }
    writer.write(entry, static_cast<size_t>(shard.first + first) * element, data, part.nbytes());
  });
}

at::ScalarType tensor_type(const TensorEntry& entry, const fs::path& file) {
  switch (entry.dtype) {
    case Dtype::F32:
      return at::kFloat;
    case Dtype::F16:
      return at::kHalf;
    case Dtype::BF16:
      return at::kBFloat16;
    default:
      throw CheckpointError(cat(file.string(),
                                ": tensor ",
                                entry.name,
                                " has type ",
                                dtype_name(entry.dtype),
                                "; weights are read from F32, F16 or BF16"));
  }
}

// Elements of a stored tensor, from element `first` on, as float32.
void read_floats(const SafetensorsFile& file,
                 const TensorEntry& entry,
                 int64_t first,
                 std::span<float> out) {
  const at::ScalarType type = tensor_type(entry, file.path());
  const size_t element = c10::elementSize(type);
  const size_t begin = static_cast<size_t>(first) * element;
  if (type == at::kFloat) {
    file.read(entry, begin, std::as_writable_bytes(out));
    return;
  }
  std::vector<std::byte> stored(out.size() * element);
  file.read(entry, begin, stored);
  view_of(out).copy_(at::from_blob(stored.data(), {static_cast<int64_t>(out.size())}, type));
}

// Fills a shard with what `read` gives for its stretches.
void fill(const TensorShard& shard,
          const std::function<void(int64_t first, std::span<float> out)>& read) {
  check_shard(shard);
  std::vector<float> staged;
  by_parts(shard.flat, [&](int64_t first, const at::Tensor& part) {
    const auto count = static_cast<size_t>(part.numel());
    if (part.is_cpu()) {
      read(shard.first + first, {part.data_ptr<float>(), count});
    } else {
      staged.resize(count);
      read(shard.first + first, staged);
      at::Tensor(part).copy_(view_of(staged));
    }
  });
}

}  // namespace

Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return Dtype::Bool;
    case at::kByte:
      return Dtype::U8;
    case at::kChar:
      return Dtype::I8;
    case at::kShort:
      return Dtype::I16;
    case at::kInt:
      return Dtype::I32;
    case at::kLong:
      return Dtype::I64;
    case at::kHalf:
      return Dtype::F16;
    case at::kBFloat16:
      return Dtype::BF16;
    case at::kFloat:
      return Dtype::F32;
    case at::kDouble:
      return Dtype::F64;
    default:
      throw InternalError(cat("files hold no ", c10::toString(type)));
  }
}

FileRecord write_shards(const fs::path& folder,
                        const std::string& name,
                        const SafetensorsLayout& layout,
                        const std::vector<TensorShard>& shards,
                        comm::Group& group) {
  const c10::NoGradGuard no_grad;
  const comm::What what = [&] { return cat("the end of writing ", name); };
  std::vector<Stretch> written;
  run_together(group, what, [&] {
    SafetensorsWriter writer(folder / name, layout);
    for (const PlacedShard& placed : in_order(layout, shards)) {
      write_shard(writer, *placed.entry, *placed.shard);
    }
    writer.finish();
    written = writer.written();
  });
  return {name,
          layout.file_bytes(),
          checksum_of_file(layout, gather_stretches(group, written, what), folder / name)};
}

const TensorEntry& require_tensor(const SafetensorsFile& file,
                                  const std::string& name,
                                  const std::vector<int64_t>& shape) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    throw CheckpointError(cat(
        file.path().string(), " has no tensor ", name, "; it is incomplete or of another model"));
  }
  if (entry->shape != shape) {
    throw CheckpointError(cat(file.path().string(),
                              ": tensor ",
                              name,
                              " has shape ",
                              shape_text(entry->shape),
                              "; this model needs ",
                              shape_text(shape),
                              ": it is another model's"));
  }
  return *entry;
}

void read_shards(const SafetensorsFile& file, const std::vector<TensorShard>& shards) {
  const c10::NoGradGuard no_grad;
  for (const TensorShard& shard : shards) {
    const TensorEntry& entry = require_tensor(file, shard.tensor, shard.shape);
    fill(shard, [&](int64_t first, std::span<float> out) { read_floats(file, entry, first, out); });
  }
}

void read_exact_shards(const SafetensorsFile& file, const std::vector<TensorShard>& shards) {
  const c10::NoGradGuard no_grad;
  for (const TensorShard& shard : shards) {
    const TensorEntry& entry = require_tensor(file, shard.tensor, shard.shape);
    const at::ScalarType type = shard.flat.scalar_type();
    if (entry.dtype != dtype_of(type)) {
      throw CheckpointError(cat(file.path().string(),
                                ": tensor ",
                                entry.name,
                                " has type ",
                                dtype_name(entry.dtype),
                                "; this model has it as ",
                                dtype_name(dtype_of(type))));
    }
    std::vector<std::byte> stored(shard.flat.nbytes());
    file.read(entry, static_cast<size_t>(shard.first) * shard.flat.element_size(), stored);
    at::Tensor(shard.flat).copy_(at::from_blob(stored.data(), shard.flat.sizes(), type));
  }
}

std::string replica_name(const std::string& tensor, int64_t replica) {
  return cat(tensor, ".", replica);
}

void name_by_replica(std::vector<TensorShard>& shards, int64_t replica) {
  for (TensorShard& shard : shards) {
    shard.tensor = replica_name(shard.tensor, replica);
  }
}

void read_mean(const SafetensorsFile& file, const TensorShard& shard, int64_t replicas) {
  const c10::NoGradGuard no_grad;
  std::vector<const TensorEntry*> entries;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    entries.push_back(&require_tensor(file, replica_name(shard.tensor, replica), shard.shape));
  }
  std::vector<float> one;
  fill(shard, [&](int64_t first, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0F);
    one.resize(out.size());
    for (const TensorEntry* entry : entries) {
      read_floats(file, *entry, first, one);
      view_of(out).add_(view_of(one));
    }
    view_of(out).div_(static_cast<double>(entries.size()));
  });
}

bool have_same_data(const SafetensorsFile& file, const TensorEntry& a, const TensorEntry& b) {
  const size_t bytes = a.end - a.begin;
  if (bytes != b.end - b.begin) {
    return false;
  }
  constexpr size_t kBytesAtOnce = size_t{1} << 20;
  std::vector<std::byte> of_a, of_b;
  for (size_t first = 0; first < bytes; first += kBytesAtOnce) {
    of_a.resize(std::min(kBytesAtOnce, bytes - first));
    of_b.resize(of_a.size());
    file.read(a, first, of_a);
    file.read(b, first, of_b);
    if (of_a != of_b) {
      return false;
    }
  }
  return true;
}

}  // namespace penstock::checkpoint
