// Ctrl-C and termination as a flag that long work asks for between steps. A second Ctrl-C ends the
// process at once.
#pragma once

namespace penstock {

void install_interrupt_handler();
bool was_interrupted();
const char* interrupt_name();  // "SIGINT" or "SIGTERM"

}  // namespace penstock
