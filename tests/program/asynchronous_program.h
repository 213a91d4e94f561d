// A sound program with two updates, small enough to break by hand.
#pragma once

#include <string>

#include "penstock/program/program_text.h"

namespace penstock::test {

enum AsynchronousLine {
  kFirstForward,
  kFirstLoss,
  kFirstBackward,
  kStash,
  kFirstSquares,
  kFirstDecide,
  kFirstStep,
  kSecondForward,
  kSecondLoss,
  kSecondBackward,
  kSecondSquares,
  kSecondDecide,
  kSecondStep
};

// One layer and its unit; the micro-batch of the second update works with the weights of before the
// first.
inline const std::string kAsynchronousText =
    R"(penstock-program 2
micro-batches 2
updates 2 weights=kept
layer 0 "a" modes=all
unit 0 "a" layers=0
rank 0 limit=none
hold m0:10 a0:4 o0:6
given x0.0:4 t.0:1 x0.1:4 t.1:1
forward layer=0 mb=0 keep=all reads=x0.0,m0 makes=x1.0:4,s0.0:6 frees=- on=compute seconds=1 working=10
loss mb=0 reads=x1.0,t.0 makes=d1.0:4 frees=x1.0,t.0 on=compute seconds=1 working=4
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,m0 makes=- sets=a0 frees=x0.0,s0.0,d1.0 on=compute seconds=2 working=0
stash reads=m0 makes=v.0:10 on=compute seconds=1 working=10
squares reads=a0 makes=q.0:0 on=compute seconds=0 working=0
decide reads=q.0 makes=n.0:0 frees=q.0 on=compute seconds=0 working=0
step units=0 reads=a0,n.0 updates=m0,o0 frees=n.0 on=compute seconds=1 working=0
forward layer=0 mb=1 keep=all reads=x0.1,v.0 makes=x1.1:4,s0.1:6 frees=- on=compute seconds=1 working=10
loss mb=1 reads=x1.1,t.1,v.0 makes=d1.1:4 frees=x1.1,t.1 on=compute seconds=1 working=4
backward layer=0 mb=1 reads=x0.1,s0.1,d1.1,v.0 makes=- sets=a0 frees=x0.1,s0.1,d1.1,v.0 on=compute seconds=2 working=0
squares reads=a0 makes=q.1:0 on=compute seconds=0 working=0
decide reads=q.1 makes=n.1:0 frees=q.1 on=compute seconds=0 working=0
step units=0 reads=a0,n.1 updates=m0,o0 frees=n.1 on=compute seconds=1 working=0
)";

inline program::Program asynchronous_program() {
  return program::parse_program(kAsynchronousText, "the asynchronous program");
}

}  // namespace penstock::test
