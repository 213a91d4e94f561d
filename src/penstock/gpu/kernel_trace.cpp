#include "penstock/gpu/kernel_trace.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <cupti.h>
#include <cxxabi.h>

#include "penstock/gpu/check.h"

namespace penstock::gpu {

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr size_t kBufferAlignment = 8;  // what CUPTI asks for

constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                               CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMCPY2,
                               CUPTI_ACTIVITY_KIND_MEMSET};

std::string cupti_words(CUptiResult status) {
  const char* text = nullptr;
  std::string words = cuptiGetErrorMessage(status, &text) == CUPTI_SUCCESS && text != nullptr
                          ? text
                          : cat("CUPTI error ", static_cast<int>(status));
  if (status == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    words += "; another profiler holds this process, run without it";
  } else if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
    words += "; the driver restricts profiling to root (NVreg_RestrictProfilingToAdminUsers)";
  }
  return words;
}

void check_cupti(CUptiResult status, const char* call, int line) {
  if (status != CUPTI_SUCCESS) {
    throw GpuError(call, cupti_words(status), __FILE__, line);
  }
}

#define PENSTOCK_CUPTI(call) check_cupti((call), #call, __LINE__)

const char* memcpy_name(uint8_t kind, bool is_pageable) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return is_pageable ? "memcpy host to device (pageable)" : "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return is_pageable ? "memcpy device to host (pageable)" : "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "memcpy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH:
      return "memcpy host to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "memcpy between devices";
    default:
      return "memcpy";
  }
}

struct Interval {
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
};

double covered_seconds(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.start_ns < b.start_ns;
  });
  uint64_t covered_ns = 0;
  uint64_t reached_ns = 0;
  for (const Interval& interval : intervals) {
    const uint64_t from_ns = std::max(interval.start_ns, reached_ns);
    if (interval.end_ns > from_ns) {
      covered_ns += interval.end_ns - from_ns;
      reached_ns = interval.end_ns;
    }
  }
  return 1e-9 * static_cast<double>(covered_ns);
}

double reach_seconds(const std::vector<Interval>& intervals) {
  if (intervals.empty()) {
    return 0;
  }
  uint64_t first_ns = intervals.front().start_ns;
  uint64_t last_ns = intervals.front().end_ns;
  for (const Interval& interval : intervals) {
    first_ns = std::min(first_ns, interval.start_ns);
    last_ns = std::max(last_ns, interval.end_ns);
  }
  return 1e-9 * static_cast<double>(last_ns - first_ns);
}

// Where the template arguments that begin at `open` end: the place of their '>'.
size_t closing_angle(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '<') {
      ++depth;
    } else if (text[i] == '>' && text[i - 1] != '-' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

struct NameParts {
  std::vector<std::string_view> scopes;  // namespaces and classes, without template arguments
  std::string_view name;
  std::string_view arguments;  // what is between < and > after the name
};

// "void a::(anonymous namespace)::b<int>::c<3, x::y>(z)"
//   -> {a, (anonymous namespace), b}, c, "3, x::y"
NameParts split_name(std::string_view text) {
  constexpr std::string_view anonymous = "(anonymous namespace)";
  NameParts parts;
  size_t begin = 0;
  size_t end = std::string_view::npos;  // of the name, where its arguments begin
  size_t i = 0;
  const auto name_up_to = [&](size_t to) { return text.substr(begin, std::min(end, to) - begin); };
  while (i < text.size()) {
    if (text.substr(i, anonymous.size()) == anonymous) {
      i += anonymous.size();
    } else if (text[i] == '<') {
      const size_t close = closing_angle(text, i);
      if (close == std::string_view::npos) {
        break;
      }
      end = std::min(end, i);
      parts.arguments = text.substr(i + 1, close - i - 1);
      i = close + 1;
    } else if (text[i] == ' ') {  // a return type, or "unsigned"
      begin = ++i;
      end = std::string_view::npos;
      parts = {};
    } else if (text.substr(i, 2) == "::") {
      parts.scopes.push_back(name_up_to(i));
      parts.arguments = {};
      begin = i += 2;
      end = std::string_view::npos;
    } else if (text[i] == '(') {  // the kernel's parameters
      break;
    } else {
      ++i;
    }
  }
  parts.name = name_up_to(i);
  return parts;
}

std::string_view trim(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

template <size_t Count>
bool is_one_of(std::string_view word, const std::array<std::string_view, Count>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The first template argument that tells something: no number, no plain type.
std::string_view first_type(std::string_view arguments) {
  constexpr std::array<std::string_view, 8> plain = {
      "true", "false", "bool", "int", "unsigned int", "long", "float", "double"};
  for (size_t begin = 0, end = 0; begin < arguments.size(); begin = end + 1) {
    int depth = 0;
    for (end = begin; end < arguments.size() && (depth > 0 || arguments[end] != ','); ++end) {
      const char letter = arguments[end];
      depth += letter == '<' || letter == '(' || letter == '{';
      depth -= letter == '>' || letter == ')' || letter == '}';
    }
    const std::string_view one = trim(arguments.substr(begin, end - begin));
    const bool is_word =
        !one.empty() && (std::isalpha(static_cast<unsigned char>(one[0])) || one[0] == '_');
    const bool is_list = one.find("ListMetadata") != std::string_view::npos;  // of AdamW's kernel
    if (is_word && !is_list && !is_one_of(one, plain)) {
      return one;
    }
  }
  return {};
}

// Kernels that run whatever their template argument says.
constexpr std::array<std::string_view, 8> kWrappers = {"Kernel",
                                                       "Kernel2",
                                                       "device_kernel",
                                                       "elementwise_kernel",
                                                       "unrolled_elementwise_kernel",
                                                       "vectorized_elementwise_kernel",
                                                       "reduce_kernel",
                                                       "multi_tensor_apply_kernel"};
// Between such a kernel and what it runs; left out of the name.
constexpr std::array<std::string_view, 5> kInnerWrappers = {
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "ReduceOp", "enable_sm90", "enable_sm80_to_sm89"};

std::string shorten(std::string_view text) {
  const NameParts parts = split_name(trim(text));
  std::string name(parts.name);
  if (!parts.scopes.empty()) {
    const std::string_view scope = parts.scopes.front();
    if (scope.substr(0, 6) == "cublas" || scope.substr(0, 5) == "cudnn") {
      name = cat(scope, "::", name);
    }
  }
  const bool is_inner = is_one_of(parts.name, kInnerWrappers);
  if (is_inner || is_one_of(parts.name, kWrappers)) {
    const std::string wrapped = shorten(first_type(parts.arguments));
    if (!wrapped.empty()) {
      return is_inner ? wrapped : cat(name, "<", wrapped, ">");
    }
  }
  return name;
}

// cuDNN's generated kernels carry a prefix and a number that say nothing.
std::string trim_generated(std::string name) {
  constexpr std::string_view noise = "generated_fort_native_";
  if (const size_t at = name.find(noise); at != std::string::npos) {
    name.erase(at, noise.size());
    if (const size_t number = name.rfind("_kernel0_"); number != std::string::npos) {
      name.erase(number);
    }
  }
  return name;
}

}  // namespace

// CUPTI hands buffers over on threads of its own and with no pointer of ours, hence the one static.
// Its mutex guards the records too, until no trace is current.
struct KernelTrace::Records {
  struct Sum {
    int64_t count = 0;
    uint64_t nanoseconds = 0;
  };

  std::unordered_map<std::string, Sum> sums;  // by symbol
  std::vector<Interval> intervals;
  size_t num_lost = 0;  // dropped, or without times
  std::string failure;  // of a callback, which must not throw

  static inline std::mutex current_mutex;
  static inline Records* current = nullptr;

  void add(const char* name, uint64_t start_ns, uint64_t end_ns) {
    if (end_ns <= start_ns && (start_ns == 0 || end_ns == 0)) {
      ++num_lost;
      return;
    }
    Sum& sum = sums[name != nullptr ? name : "unnamed kernel"];
    ++sum.count;
    sum.nanoseconds += end_ns - std::min(start_ns, end_ns);
    intervals.push_back({start_ns, end_ns});
  }

  void add(const CUpti_Activity& record) {
    if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      add(kernel.name, kernel.start, kernel.end);
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      const bool is_pageable = copy.srcKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE ||
                               copy.dstKind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
      add(memcpy_name(copy.copyKind, is_pageable), copy.start, copy.end);
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
      add(memcpy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, false), copy.start, copy.end);
    } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto& set = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      add("memset", set.start, set.end);
    }
  }

  void read(uint8_t* buffer, size_t valid_bytes) {
    try {
      CUpti_Activity* record = nullptr;
      CUptiResult status = CUPTI_SUCCESS;
      while (valid_bytes > 0 &&
             (status = cuptiActivityGetNextRecord(buffer, valid_bytes, &record)) == CUPTI_SUCCESS) {
        add(*record);
      }
      if (status != CUPTI_SUCCESS && status != CUPTI_ERROR_MAX_LIMIT_REACHED) {
        failure = "cuptiActivityGetNextRecord: " + cupti_words(status);
      }
      size_t num_dropped = 0;
      status = cuptiActivityGetNumDroppedRecords(nullptr, 0, &num_dropped);
      if (status != CUPTI_SUCCESS) {
        failure = "cuptiActivityGetNumDroppedRecords: " + cupti_words(status);
      }
      num_lost += num_dropped;
    } catch (const std::exception&) {
      ++num_lost;
    }
  }

  static void CUPTIAPI on_requested(uint8_t** buffer, size_t* bytes, size_t* max_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    *bytes = *buffer != nullptr ? kBufferBytes : 0;
    *max_records = 0;  // as many as fit
  }

  static void CUPTIAPI on_completed(CUcontext /*context*/,
                                    uint32_t /*stream*/,
                                    uint8_t* buffer,
                                    size_t /*bytes*/,
                                    size_t valid_bytes) {
    {
      const std::lock_guard lock(current_mutex);
      if (current != nullptr) {
        current->read(buffer, valid_bytes);
      }
    }
    std::free(buffer);
  }
};

KernelTrace::KernelTrace() : records_(std::make_unique<Records>()) {
  PENSTOCK_CUDA(cudaDeviceSynchronize());
  {
    const std::lock_guard lock(Records::current_mutex);
    PENSTOCK_CHECK(Records::current == nullptr, "one KernelTrace at a time");
    Records::current = records_.get();
  }
  is_collecting_ = true;
  try {
    PENSTOCK_CUPTI(cuptiActivityRegisterCallbacks(Records::on_requested, Records::on_completed));
    for (const CUpti_ActivityKind kind : kKinds) {
      PENSTOCK_CUPTI(cuptiActivityEnable(kind));
    }
  } catch (...) {
    end_collecting();
    throw;
  }
}

KernelTrace::~KernelTrace() {
  if (is_collecting_) {
    end_collecting();
  }
}

// Buffers that come later find no trace and are freed. Never throws: returns what failed first.
int KernelTrace::end_collecting() {
  CUptiResult status = CUPTI_SUCCESS;
  for (const CUpti_ActivityKind kind : kKinds) {
    const CUptiResult one = cuptiActivityDisable(kind);
    status = status == CUPTI_SUCCESS ? one : status;
  }
  const std::lock_guard lock(Records::current_mutex);
  Records::current = nullptr;
  is_collecting_ = false;
  return status;
}

std::vector<KernelTime> KernelTrace::stop() {
  PENSTOCK_CHECK(is_collecting_, "a KernelTrace stops once");
  PENSTOCK_CUDA(cudaDeviceSynchronize());
  PENSTOCK_CUPTI(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  check_cupti(static_cast<CUptiResult>(end_collecting()), "cuptiActivityDisable", __LINE__);

  if (!records_->failure.empty()) {
    throw GpuError("KernelTrace::stop", records_->failure, __FILE__, __LINE__);
  }
  if (records_->num_lost > 0) {
    throw GpuError("KernelTrace::stop",
                   cat("CUPTI lost ", records_->num_lost, " records; trace fewer steps at a time"),
                   __FILE__,
                   __LINE__);
  }
  busy_seconds_ = covered_seconds(records_->intervals);
  span_seconds_ = reach_seconds(records_->intervals);

  std::map<std::string, KernelTime> by_name;  // several symbols may shorten to one name
  for (const auto& [symbol, sum] : records_->sums) {
    const std::string name = short_kernel_name(symbol);
    KernelTime& time = by_name[name];
    time.name = name;
    time.count += sum.count;
    time.seconds += 1e-9 * static_cast<double>(sum.nanoseconds);
  }
  std::vector<KernelTime> times;
  for (auto& [name, time] : by_name) {
    times.push_back(std::move(time));
  }
  std::stable_sort(times.begin(), times.end(), [](const KernelTime& a, const KernelTime& b) {
    return a.seconds > b.seconds;
  });
  return times;
}

std::string short_kernel_name(std::string_view symbol) {
  const std::string mangled(symbol);
  if (symbol.substr(0, 6) == "memcpy" || symbol.substr(0, 6) == "memset") {
    return mangled;
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  const std::string text = status == 0 && demangled != nullptr ? demangled.get() : mangled;
  const std::string name = trim_generated(shorten(text));
  return name.empty() ? text : name;
}

}  // namespace penstock::gpu
