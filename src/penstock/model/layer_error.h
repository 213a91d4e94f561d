// What goes wrong in a user's layer, in one line: the layer, what it was given, and what LibTorch said
// without its backtrace.
#pragma once

#include <new>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/model/layer.h"

namespace penstock::model {

// Names its layer: nothing is to be put before it.
class LayerError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// The first line of what LibTorch says.
std::string first_line(const std::string& text);

// Runs a call of a layer, or of the loss. All that a user may have got wrong there becomes a LayerError;
// our own bugs, and memory that there is not, stay as they are.
template <typename Work>
auto naming_layer(const std::string& layer,
                  const char* what,
                  const Tensors& given,
                  const Work& work) {
  const auto refuse = [&](const std::string& why) {
    throw LayerError(
        cat("layer ", layer, ", ", what, " of ", shape_text(given), ": ", first_line(why)));
  };
  try {
    return work();
  } catch (const c10::OutOfMemoryError&) {
    throw;  // the limit's, or the device's: others know what to say of it
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  } catch (const LayerError&) {
    throw;
  } catch (const ConfigError& error) {
    refuse(error.what());
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  throw InternalError("a layer failed without a word");
}

// Of a chain: a family's layers are ours, and so are their mistakes.
template <typename Chain, typename Work>
auto naming_own_layer(const Chain& chain,
                      const std::string& layer,
                      const char* what,
                      const Tensors& given,
                      const Work& work) {
  return chain.is_own() ? naming_layer(layer, what, given, work) : work();
}

}  // namespace penstock::model
