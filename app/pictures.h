// --svg, --html and --trace: the pictures of a step that simulate and train can write.
#pragma once

#include <string>

#include "penstock/report/step_picture.h"

#include "command_line.h"

namespace penstock::app {

struct PictureArguments {
  std::string svg, html, trace;

  bool any() const { return !svg.empty() || !html.empty() || !trace.empty(); }
};
void add_picture_arguments(Command& command, PictureArguments& arguments);

// As require_writable() of arguments.h, for each.
void require_writable(const PictureArguments& arguments);

void write_pictures(const report::StepPicture& picture, const PictureArguments& arguments);

}  // namespace penstock::app
