#include "penstock/base/interrupt.h"

#include <signal.h>

namespace penstock {

namespace {

volatile sig_atomic_t caught_signal = 0;

void on_signal(int number) {
  if (caught_signal != 0) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  caught_signal = number;
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool was_interrupted() {
  return caught_signal != 0;
}

const char* interrupt_name() {
  return caught_signal == SIGTERM ? "SIGTERM" : "SIGINT";
}

}  // namespace penstock
