// What goes wrong in a user's layer, in one line: the layer, what it was given, and what LibTorch said
// without its backtrace.
#pragma once

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/model/layer.h"

namespace penstock::model {

// The first line of what LibTorch says.
std::string first_line(const std::string& text);

template <typename Work>
auto naming_layer(const std::string& layer,
                  const char* what,
                  const Tensors& given,
                  const Work& work) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(
        cat("layer ", layer, ", ", what, " of ", shape_text(given), ": ", first_line(why)));
  };
  try {
    return work();
  } catch (const c10::OutOfMemoryError&) {
    throw;  // the limit's, or the device's: others know what to say of it
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  } catch (const ConfigError& error) {
    refuse(error.what());
  }
  throw InternalError("a layer failed without a word");
}

}  // namespace penstock::model
