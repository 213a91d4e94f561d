// Ctrl-C and the signals that ask a program to end, as a flag that long work asks for between steps:
// SIGINT, SIGTERM, SIGUSR1 (a batch system's warning) and SIGHUP (the terminal is gone). A second Ctrl-C
// ends the process at once; the others may come again while the first is obeyed.
#pragma once

namespace penstock {

void install_interrupt_handler();
bool was_interrupted();
const char* interrupt_name();  // of the first that came, SIGINT before all: "SIGTERM"
// SIGINT or SIGTERM came, after which whoever sent it soon kills; SIGUSR1 and SIGHUP leave time.
bool will_be_killed();

}  // namespace penstock
