// Clearing gradients on a GPU without touching those that will be overwritten anyway. Internal to
// parameters.cpp.
#pragma once

namespace penstock::model {

class Parameters;

void empty_gpu_gradients(Parameters& parameters);
void complete_gpu_gradients(Parameters& parameters);
void forget_gpu_gradients(Parameters& parameters);  // their addresses may be others' soon

}  // namespace penstock::model
