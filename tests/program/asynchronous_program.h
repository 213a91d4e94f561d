// A sound program with two updates, small enough to break by hand.
#pragma once

#include <string>

#include "penstock/program/program_text.h"

namespace penstock::test {

enum AsynchronousLine {
  kFirstClear,
  kFirstForward,
  kFirstLoss,
  kFirstBackward,
  kStash,
  kFirstStep,
  kSecondClear,
  kSecondForward,
  kSecondLoss,
  kSecondBackward,
  kSecondStep
};

// One layer; the micro-batch of the second update works with the weights of before the first.
inline const std::string kAsynchronousText =
    R"(penstock-program 1
micro-batches 2
updates 2 weights=kept
layer 0 "a" ways=all
rank 0 limit=none
resident 20 "parameters"
given x0.0:4 t.0:1 x0.1:4 t.1:1
clear on=compute seconds=1 working=0
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:4,s0.0:6 frees=- on=compute seconds=1 working=10
loss mb=0 reads=x1.0,t.0 makes=d1.0:4 frees=x1.0,t.0 on=compute seconds=1 working=4
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0 makes=- frees=x0.0,s0.0,d1.0 on=compute seconds=2 working=0
stash makes=v.0:10 on=compute seconds=1 working=10
step on=compute seconds=1 working=0
clear on=compute seconds=1 working=0
forward layer=0 mb=1 keep=all reads=x0.1,v.0 makes=x1.1:4,s0.1:6 frees=- on=compute seconds=1 working=10
loss mb=1 reads=x1.1,t.1,v.0 makes=d1.1:4 frees=x1.1,t.1 on=compute seconds=1 working=4
backward layer=0 mb=1 reads=x0.1,s0.1,d1.1,v.0 makes=- frees=x0.1,s0.1,d1.1,v.0 on=compute seconds=2 working=0
step on=compute seconds=1 working=0
)";

inline program::Program asynchronous_program() {
  return program::parse_program(kAsynchronousText, "the asynchronous program");
}

}  // namespace penstock::test
