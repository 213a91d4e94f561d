#include "compare_steps.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/program/simulate.h"
#include "penstock/report/comparison.h"

namespace penstock::app {

namespace {

nlohmann::ordered_json figures_json(const report::StepPicture& picture) {
  const report::StepFigures figures = report::figures_of(picture);
  nlohmann::ordered_json by_op = nlohmann::ordered_json::object();
  for (size_t op = 0; op < program::kNumOps; ++op) {
    if (figures.instructions[op] > 0) {
      by_op[std::string(program::op_name(static_cast<program::Op>(op)))] = figures.instructions[op];
    }
  }
  return {{"title", picture.title},
          {"step", figures.seconds},
          {"bubble", figures.bubble},
          {"peak_bytes", figures.peak_bytes},
          {"recomputed_forwards", figures.recomputed_forwards},
          {"sent_bytes", figures.sent_bytes},
          {"instructions", by_op}};
}

// Bare numbers have no seconds to put beside those of a model.
void require_alike(const StepSource& a, const StepSource& b) {
  const bool is_bare = report::is_bare(a.program);
  if (is_bare != report::is_bare(b.program)) {
    throw ConfigError(
        cat(is_bare ? a.title : b.title,
            " is a pipeline of bare numbers, without seconds and bytes; compare it with "
            "another one of these"));
  }
}

void write_picture(const std::string& file, const std::string& text) {
  write_text_file(file, text);
  log_info("wrote ", file);
}

}  // namespace

int compare_steps(const StepSource& a,
                  const StepSource& b,
                  const PictureArguments& pictures,
                  bool as_json) {
  require_alike(a, b);
  const program::Timeline a_timeline = program::simulate(a.program);
  const program::Timeline b_timeline = program::simulate(b.program);
  const report::StepPicture first{a.title, a.program, a_timeline};
  const report::StepPicture second{b.title, b.program, b_timeline};
  if (!pictures.svg.empty()) {
    write_picture(pictures.svg, report::comparison_svg(first, second));
  }
  if (!pictures.html.empty()) {
    write_picture(pictures.html, report::comparison_html(first, second));
  }
  if (as_json) {
    // Titles are names of files, of any bytes.
    const nlohmann::ordered_json json{{"a", figures_json(first)}, {"b", figures_json(second)}};
    std::printf("%s\n",
                json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s", report::comparison_text(first, second).c_str());
  }
  return 0;
}

}  // namespace penstock::app
