// A program with every line, value, operation and field that there is. It makes no sense.
#pragma once

#include <string>

namespace penstock::test {

// Of rank 0; ranks 1 to 15 are empty.
inline const std::string kEverythingHead =
    R"(penstock-program 2
micro-batches 4
updates 2 weights=mixed
mesh data=2 pipeline=2 tensor=2 context=2
shard optimizer replicas=apart
group 0 "data" axes=data
group 1 "wte" axes=pipeline stages=0,1
group 2 "all" axes=data,pipeline,tensor,context
group 3 "" axes=-
layer 0 "embedding" modes=all
layer 1 "own \"module\" \\ 1" modes=all+output,no-norm
layer 2 "" modes=-
carried 0 "mask" readers=1,3
carried 1 "own \"memory\"" born=0 readers=2 gradient=yes
unit 0 "a" layers=0 frozen=yes
unit 1 "table" layers=0,1,3 forward=0,1 weight=1 shared=yes elements=64
unit 2 "" layers=- elements=9223372036854775807
rank 0 limit=629145600 host=2000 disk=3000
hold m0:8@0-4+6-8 c0:4 a0:8/host b1.3:8@1-2/disk o0:16@0-4+6-8/host o1:0
hold e0:3 "history"
hold k1:5/disk "the \"cache\""
hold k2:0 ""
hold m2:1 A1:6/host A2:5
given x0.0:4 t.3:1/host
)";

inline const std::string kEverythingList =
    R"(forward layer=0 mb=0 keep=all reads=x0.0,m0 makes=x1.0:64,s0.0:128/host sets=a0 updates=o0 frees=- on=compute seconds=1e-05 working=200
forward layer=1 mb=0 keep=no-norm reads=x1.0 makes=x2.0:64 frees=x1.0 on=copy:3 seconds=0 working=64
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0#2:64/disk frees=x0.0 on=host seconds=2 working=64
loss mb=3 reads=x2.0,t.3 makes=d3.3:64 sets=b1.3 updates=a0,m0 frees=x2.0,t.3 on=disk:2 seconds=0.1 working=70
backward layer=1 mb=3 reads=s0.0,d3.3 makes=- updates=a0 frees=- on=line:1 seconds=3 working=0
backward-input layer=1 mb=3 reads=d3.3 makes=w1.3:5,g1.3:6 sets=a0 updates=m2 frees=d3.3 on=compute seconds=1 working=11
backward-weight layer=1 mb=3 reads=w1.3 makes=- sets=m2 updates=g1.3 frees=w1.3 on=compute seconds=1 working=0
send layer=3 mb=2 reads=x1.0#2 frees=x1.0#2 on=link:15 seconds=0.25 working=7 sends=64
receive layer=2 mb=1 makes=d2.1:8 frees=s0.0 on=inlet:3 working=8
drop frees=d2.1
drop reads=m0 makes=x3.2:2 sets=a0 updates=o0 frees=x3.2,g1.3 on=copy:0 seconds=0.5 working=2
stash reads=m0,m2 makes=v.1:9 sets=a0 updates=o0 frees=v.1 on=compute seconds=1 working=9
gather units=1 mb=3 group=0 reads=m0 makes=p1.3:64 sets=c0 updates=m2 frees=p1.3 on=line:0 seconds=0.5 working=64 sends=32
gather group=2 reads=q.0 makes=z.1:0 on=compute seconds=0.5 working=0 sends=16
reduce units=0,1,2 mb=2 group=0 to=scatter reads=m0 makes=p0.2:1 sets=c0 updates=a0 frees=p0.2 on=line:0 seconds=0.25 working=1 sends=9000000000000000000
reduce units=- group=3 to=all on=compute seconds=0.25 working=0
add layer=3 units=1 reads=b1.3 makes=g0.0:1 sets=c0 updates=a0 frees=g0.0 on=compute seconds=0.125 working=1
sketch reads=a0 makes=h.1:0 sets=m0 updates=o0 on=host seconds=0.5 working=0
gather group=0 reads=h.1 makes=j.1:0 frees=h.1 on=compute seconds=0.5 working=0 sends=8
squares reads=a0 makes=q.0:0/host sets=m0 updates=o0 on=host seconds=0.5 working=0
decide reads=z.1 makes=n.1:0 sets=m0 updates=e0 frees=z.1,q.0 on=compute seconds=1 working=0
gather group=0 makes=f.0:0 updates=o0 on=compute seconds=0 working=0
prepare reads=n.1,f.0 makes=r.1:0,l.0:0 sets=c0 updates=o0,e0 frees=f.0,j.1 on=compute seconds=1 working=0
exchange group=0 reads=r.1 makes=y.1:0 sets=c0 updates=o0,e0 frees=r.1,l.0 on=line:0 seconds=1 working=0 sends=12
merge group=1 reads=a0 sets=c0 updates=A1,A2 on=line:1 seconds=0.5 working=7 sends=10
step units=0,1 reads=a0,n.1,y.1 makes=t.0:1 sets=c0 updates=m0,o0,e0 frees=n.1,t.0,y.1 on=host seconds=0.3333333333333333 working=9223372036850000000
step updates=A1 on=compute seconds=0 working=0
receive element=0 mb=3 makes=i0.3:3 on=inlet:3 working=3
receive element=1 mb=1 makes=u1.1:8/host frees=i0.3 on=inlet:3 working=8
send element=1 mb=1 reads=u1.1 frees=u1.1 on=link:2 seconds=0.25 working=0 sends=8
)";

inline std::string everything_text() {
  std::string text = kEverythingHead + kEverythingList;
  for (int rank = 1; rank < 16; ++rank) {
    text += "rank " + std::to_string(rank) + " limit=none\n";
  }
  return text;
}

}  // namespace penstock::test
