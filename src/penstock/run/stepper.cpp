#include "penstock/run/stepper.h"

#include "penstock/base/error.h"
#include "penstock/model/parameters.h"

namespace penstock::run {

namespace {

[[noreturn]] void refuse_exchange() {
  throw InternalError("the program exchanges what the optimizer does not have");
}

}  // namespace

std::vector<double> Stepper::take_sketches(model::Parameters&, const UpdateSettings&) {
  refuse_exchange();
}
void Stepper::estimate_squares(model::Parameters&, const std::vector<double>&) {
  refuse_exchange();
}
void Stepper::fill_state(model::Parameters&, comm::Group&) {
  refuse_exchange();
}
std::vector<double> Stepper::prepare(model::Parameters&) {
  refuse_exchange();
}
void Stepper::exchange(model::Parameters&, comm::Group&) {
  refuse_exchange();
}
void Stepper::take_lengths(const std::vector<double>&) {
  refuse_exchange();
}

std::vector<double> NoStepper::take_sketches(model::Parameters& parameters, const UpdateSettings&) {
  parameters_ = parameters.learning().size();
  return {};
}
void NoStepper::take_squares(model::Parameters& parameters, const UpdateSettings&, bool) {
  parameters_ = parameters.learning().size();
}

}  // namespace penstock::run
