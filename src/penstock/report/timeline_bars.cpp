#include "penstock/report/timeline_bars.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/svg.h"

namespace penstock::report {

namespace {

using program::Instruction;
using program::Op;

// Pixels.
constexpr double kNarrow = 0.5;   // narrower bars are drawn together...
constexpr double kTogether = 1;   // ...until they are this wide
constexpr double kPointable = 3;  // from here on with a tooltip, and a gap to the next
constexpr double kGap = 0.7;
constexpr double kLetterWidth = 0.58;  // of the font size, on average
constexpr double kSmallestFont = 7;    // lower lanes have no names

// Neighbours of which none can be seen alone.
struct Group {
  double left = 0, right = 0;
  std::array<double, kNumBarKinds> seconds = {};

  BarKind main_kind() const {
    return static_cast<BarKind>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
  }
};

std::string milliseconds(double seconds) {
  std::array<char, 48> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.3f ms", seconds * 1e3);
  return buffer.data();
}

// Layer (or unit) and micro-batch as in the names of values, where ranks work on several at once.
std::string bar_label(const BarLane& lane, const Instruction& instruction) {
  const int32_t subject = only_unit(instruction) >= 0 ? only_unit(instruction) : instruction.layer;
  if (subject < 0) {
    return std::string(program::op_name(instruction.op));
  }
  const bool is_pipeline = lane.program.ranks.size() > 1 && lane.program.micro_batches > 1;
  return is_pipeline && instruction.micro_batch >= 0 ? cat(subject, ".", instruction.micro_batch)
                                                     : std::to_string(subject);
}

std::string moved_bytes(const program::RankProgram& rank, const Instruction& transfer) {
  return format_bytes(rank.bytes_of(transfer.reads) + rank.bytes_of(transfer.makes));
}

std::string tooltip(const BarLane& lane, size_t index) {
  const Instruction& instruction = lane.rank.instructions[index];
  std::string text = program::describe(lane.program, instruction);
  if (instruction.op == Op::Forward) {
    text += cat(", keeps ", keep_name(lane.program, instruction));
  }
  if (is_transfer(instruction.op) && !lane.is_bare) {
    text += cat(", ", moved_bytes(lane.rank, instruction));
  }
  const program::Span& span = lane.spans[index];
  const auto time = [&](double seconds) {
    return lane.is_bare ? time_text(seconds, true) : milliseconds(seconds);
  };
  text += cat("; at ", time(span.start), " for ", time(duration(span)));
  if (lane.others != nullptr) {
    text += cat(", ", lane.others_name, " ", time(duration((*lane.others)[index])));
  }
  return text;
}

class LaneWriter {
 public:
  explicit LaneWriter(const BarLane& lane) : lane_(lane) {}

  void add(size_t index) {
    const program::Span& span = lane_.spans[index];
    const double left = lane_.pixel_x(span.start), right = lane_.pixel_x(span.end);
    if (right - left >= kNarrow) {
      finish_group();
      right - left >= kPointable ? add_bar(index, left, right)
                                 : add_stroke(lane_.kinds[index], left, right);
      return;
    }
    if (has_group_ && (right - group_.left > kTogether || left - group_.right > kNarrow)) {
      finish_group();
    }
    if (!has_group_) {
      group_ = {left, right, {}};
      has_group_ = true;
    }
    group_.right = right;
    group_.seconds[static_cast<size_t>(lane_.kinds[index])] += duration(span);
  }

  std::string finish() {
    finish_group();
    std::string out;
    const std::string middle = svg_pixels(lane_.height / 2);
    for (size_t kind = 0; kind < kNumBarKinds; ++kind) {
      if (!strokes_[kind].empty()) {
        out += cat("<path fill=\"none\" stroke=\"",
                   bar_style(static_cast<BarKind>(kind)).fill,
                   "\" stroke-width=\"",
                   svg_pixels(lane_.height),
                   "\" transform=\"translate(0 ",
                   middle,
                   ")\" d=\"",
                   strokes_[kind],
                   "\"/>\n");
      }
    }
    return out + bars_;
  }

 private:
  void finish_group() {
    if (has_group_ && group_.right > group_.left) {
      add_stroke(group_.main_kind(), group_.left, group_.right);
    }
    has_group_ = false;
  }

  // One path for all narrow bars of a kind, drawn as strokes as high as the lane: a tenth of the
  // letters that rectangles take.
  void add_stroke(BarKind kind, double left, double right) {
    const double width = std::max(right - left, kNarrow);
    strokes_[static_cast<size_t>(kind)] += cat("M", svg_pixels(left), " 0h", svg_pixels(width));
  }

  void add_bar(size_t index, double left, double right) {
    const BarStyle& style = bar_style(lane_.kinds[index]);
    bars_ += cat("<rect x=\"",
                 svg_pixels(left),
                 "\" width=\"",
                 svg_pixels(right - left - kGap),
                 "\" height=\"",
                 svg_pixels(lane_.height),
                 "\" fill=\"",
                 style.fill,
                 "\"><title>",
                 xml_escape(tooltip(lane_, index)),
                 "</title></rect>\n");
    const double font = std::min(11.0, lane_.height - 3);
    const std::string label = bar_label(lane_, lane_.rank.instructions[index]);
    if (font >= kSmallestFont &&
        kLetterWidth * font * static_cast<double>(label.size()) <= right - left - 2) {
      bars_ += svg_text((left + right - kGap) / 2,
                        lane_.height / 2 + 0.35 * font,
                        cat("font-size=\"",
                            svg_pixels(font),
                            "\" text-anchor=\"middle\" pointer-events=\"none\" fill=\"",
                            style.text_fill,
                            "\""),
                        label);
    }
  }

  const BarLane& lane_;
  Group group_;
  bool has_group_ = false;
  std::array<std::string, kNumBarKinds> strokes_;
  std::string bars_;
};

}  // namespace

std::string bars_svg(const BarLane& lane) {
  LaneWriter writer(lane);
  for (size_t i = 0; i < lane.spans.size(); ++i) {
    if (lane.rank.instructions[i].resource == lane.resource && duration(lane.spans[i]) > 0) {
      writer.add(i);
    }
  }
  return writer.finish();
}

}  // namespace penstock::report
