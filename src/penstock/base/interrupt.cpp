#include "penstock/base/interrupt.h"

#include <initializer_list>
#include <signal.h>

namespace penstock {

namespace {

volatile sig_atomic_t caught_signal = 0;
volatile sig_atomic_t kill_follows = 0;

void on_signal(int number) {
  if (caught_signal == SIGINT && number == SIGINT) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  if (number == SIGINT || number == SIGTERM) {
    kill_follows = 1;
  }
  if (caught_signal == 0 || number == SIGINT) {
    caught_signal = number;
  }
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction before = {};
    ::sigaction(number, nullptr, &before);
    // nohup has it ignored, and means that.
    if (number != SIGHUP || before.sa_handler != SIG_IGN) {
      ::sigaction(number, &action, nullptr);
    }
  }
}

bool was_interrupted() {
  return caught_signal != 0;
}

bool will_be_killed() {
  return kill_follows != 0;
}

const char* interrupt_name() {
  switch (caught_signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "SIGINT";
  }
}

}  // namespace penstock
