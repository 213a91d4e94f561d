// libFuzzer target: whatever the bytes, a program is answered with a ConfigError of one line, or it
// comes back the same from both its forms; verify answers it, and what it accepts can be replayed and
// simulated.
// Seeds: tests/fuzz/seeds/program.
#include <cstddef>
#include <cstdint>
#include <string>

#include "penstock/base/error.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

namespace {

using namespace penstock::program;

void require(bool condition) {
  if (!condition) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Program program;
  try {
    program = !text.empty() && text[0] == '{' ? parse_program_json(text, "program")
                                              : parse_program(text, "program");
  } catch (const penstock::ConfigError& error) {
    require(std::string(error.what()).find('\n') == std::string::npos);
    return 0;
  }
  require(parse_program(format_program(program), "printed") == program);
  require(parse_program_json(program_json(program), "printed") == program);
  const Verdict verdict = verify(program);
  if (verdict.is_sound()) {
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      require(replay_peak(program.ranks[rank]).tier_bytes == verdict.peaks[rank].tier_bytes);
    }
    simulate(program);
  } else {
    require(verdict.violation->text.find('\n') == std::string::npos);
  }
  return 0;
}
