#include "pictures.h"

#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/report/timeline_html.h"
#include "penstock/report/timeline_svg.h"
#include "penstock/report/trace.h"

#include "arguments.h"

namespace penstock::app {

void add_picture_arguments(Command& command, PictureArguments& arguments) {
  command.add("--svg", arguments.svg, "write the timeline and the memory curve as an SVG picture")
      .named("FILE")
      .not_empty();
  command
      .add("--html",
           arguments.html,
           "write them as a page for a browser: hover for numbers, zoom, table by layer")
      .named("FILE")
      .not_empty();
  command.add("--trace", arguments.trace, "write them as a trace that Perfetto opens")
      .named("FILE")
      .not_empty();
}

void require_writable(const PictureArguments& arguments) {
  for (const std::string& file : {arguments.svg, arguments.html, arguments.trace}) {
    require_writable(file);
  }
}

void write_pictures(const report::StepPicture& picture, const PictureArguments& arguments) {
  const auto write = [](const std::string& file, const std::string& text) {
    write_text_file(file, text);
    log_info("wrote ", file);
  };
  if (!arguments.svg.empty()) {
    write(arguments.svg, report::timeline_svg(picture));
  }
  if (!arguments.html.empty()) {
    write(arguments.html, report::timeline_html(picture));
  }
  if (!arguments.trace.empty()) {
    write(arguments.trace, report::trace_json(picture));
  }
}

}  // namespace penstock::app
