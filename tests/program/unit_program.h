// A sound program of one rank with weights, gradients and state, small enough to break by hand.
#pragma once

#include <string>

#include "penstock/program/program_text.h"

namespace penstock::test {

enum UnitLine {
  kForwardA0,
  kForwardB0,
  kLoss0,
  kBackwardB0,
  kBackwardA0,
  kForwardA1,
  kForwardB1,
  kLoss1,
  kBackwardB1,
  kBackwardA1,
  kAdd,
  kSquares,
  kDecide,
  kUnitStep
};

// Two layers and two micro-batches. Unit "a" has a copy for its layer beside the master; the loss
// shares unit "table" with layer a, and adds to a share of its own. The backward of b needs no
// weights.
inline const std::string kUnitText =
    R"(penstock-program 2
micro-batches 2
layer 0 "a" modes=all
layer 1 "b" modes=all
unit 0 "a" layers=0
unit 1 "b" layers=1 forward=1
unit 2 "table" layers=0,2 shared=yes elements=8
rank 0 limit=none
hold m0:4 c0:2 a0:4 o0:8 m1:4 a1:4 o1:8 m2:8 a2:8 b2.2:8 o2:16/host
hold e0:3 "history"
hold k1:5 "workspace"
given x0.0:4 t.0:1 x0.1:4 t.1:1
forward layer=0 mb=0 keep=all reads=x0.0,c0,m0,m2 makes=x1.0:4,s0.0:6 frees=- on=compute seconds=1 working=10
forward layer=1 mb=0 keep=all reads=x1.0,m1 makes=x2.0:4,s1.0:6 frees=- on=compute seconds=1 working=10
loss mb=0 reads=x2.0,t.0,m2 makes=d2.0:4 sets=b2.2 frees=x2.0,t.0 on=compute seconds=1 working=4
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0 makes=d1.0:4 sets=a1 frees=x1.0,s1.0,d2.0 on=compute seconds=1 working=4
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,c0,m0,m2 makes=- sets=a0,a2 frees=x0.0,s0.0,d1.0 on=compute seconds=1 working=0
forward layer=0 mb=1 keep=all reads=x0.1,c0,m0,m2 makes=x1.1:4,s0.1:6 frees=- on=compute seconds=1 working=10
forward layer=1 mb=1 keep=all reads=x1.1,m1 makes=x2.1:4,s1.1:6 frees=- on=compute seconds=1 working=10
loss mb=1 reads=x2.1,t.1,m2 makes=d2.1:4 updates=b2.2 frees=x2.1,t.1 on=compute seconds=1 working=4
backward layer=1 mb=1 reads=x1.1,s1.1,d2.1 makes=d1.1:4 updates=a1 frees=x1.1,s1.1,d2.1 on=compute seconds=1 working=4
backward layer=0 mb=1 reads=x0.1,s0.1,d1.1,c0,m0,m2 makes=- updates=a0,a2 frees=x0.1,s0.1,d1.1 on=compute seconds=1 working=0
add layer=2 units=2 reads=b2.2 updates=a2 on=compute seconds=0.5 working=0
squares reads=a0,a1,a2 makes=q.0:0 on=compute seconds=0.5 working=0
decide reads=q.0 makes=n.0:0 frees=q.0 on=compute seconds=0 working=0
step units=0,1,2 reads=a0,a1,a2,n.0 updates=m0,c0,o0,m1,o1,m2,o2,e0 frees=n.0 on=host seconds=2 working=0
)";

inline program::Program unit_program() {
  return program::parse_program(kUnitText, "the program of units");
}

}  // namespace penstock::test
