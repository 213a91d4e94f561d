#include "penstock/gpu/nvml.h"

#include <array>
#include <exception>
#include <limits>
#include <utility>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "penstock/base/text.h"

namespace penstock::gpu {

namespace {

// The part of nvml.h that is used here. These are stable: a changed layout gets a new name (_v3).
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kClockOfMultiprocessors = 1;
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

struct NvmlMemory {
  unsigned long long total, free, used;
};

struct NvmlProcess {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

void set_reason(std::string* why_not, std::string reason) {
  if (why_not != nullptr) {
    *why_not = std::move(reason);
  }
}

}  // namespace

// The open library. Functions that a driver lacks are null, except those that open() requires.
struct PowerMeter::Library {
  void* handle = nullptr;
  bool is_initialised = false;

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*handle_by_bus)(const char*, void**) = nullptr;
  int (*total_energy)(void*, unsigned long long*) = nullptr;
  int (*power_usage)(void*, unsigned int*) = nullptr;
  int (*clock_info)(void*, int, unsigned int*) = nullptr;
  int (*memory_info)(void*, NvmlMemory*) = nullptr;
  int (*running_processes)(void*, unsigned int*, NvmlProcess*) = nullptr;
  int (*device_name)(void*, char*, unsigned int) = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  ~Library() {
    if (is_initialised && shutdown != nullptr) {
      shutdown();
    }
    if (handle != nullptr) {
      dlclose(handle);
    }
  }

  template <typename Function>
  void find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(handle, symbol));
  }

  // What is missing, or "".
  std::string load() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      return cat("NVML is not there: ", reason != nullptr ? reason : "no reason given");
    }
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(handle_by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(total_energy, "nvmlDeviceGetTotalEnergyConsumption");
    find(power_usage, "nvmlDeviceGetPowerUsage");
    find(clock_info, "nvmlDeviceGetClockInfo");
    find(memory_info, "nvmlDeviceGetMemoryInfo");
    find(running_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    find(device_name, "nvmlDeviceGetName");
    if (init == nullptr || shutdown == nullptr || handle_by_bus == nullptr) {
      return "this libnvidia-ml.so.1 is too old: it has no nvmlInit_v2";
    }
    const int status = init();
    is_initialised = status == kSuccess;
    return is_initialised ? "" : cat("nvmlInit_v2: ", words(status));
  }

  std::string words(int status) const {
    return error_string != nullptr ? error_string(status) : cat("NVML error ", status);
  }
};

PowerMeter::PowerMeter(std::unique_ptr<Library> library, void* device)
    : library_(std::move(library)), device_(device) {}

PowerMeter::PowerMeter(PowerMeter&&) noexcept = default;
PowerMeter& PowerMeter::operator=(PowerMeter&&) noexcept = default;
PowerMeter::~PowerMeter() = default;

std::optional<PowerMeter> PowerMeter::open(int device, std::string* why_not) noexcept try {
  // Devices are matched by bus: CUDA_VISIBLE_DEVICES renumbers CUDA's, not NVML's.
  std::array<char, 32> bus = {};
  const cudaError_t status = cudaDeviceGetPCIBusId(bus.data(), int(bus.size()), device);
  if (status != cudaSuccess) {
    cudaGetLastError();  // the next check of a launch must not find it
    set_reason(why_not, cat("device ", device, ": ", cudaGetErrorString(status)));
    return std::nullopt;
  }
  auto library = std::make_unique<Library>();
  if (const std::string missing = library->load(); !missing.empty()) {
    set_reason(why_not, missing);
    return std::nullopt;
  }
  void* handle = nullptr;
  if (const int found = library->handle_by_bus(bus.data(), &handle); found != kSuccess) {
    set_reason(why_not, cat("NVML, device ", bus.data(), ": ", library->words(found)));
    return std::nullopt;
  }
  return PowerMeter(std::move(library), handle);
} catch (const std::exception&) {
  return std::nullopt;  // no memory for a few words
}

std::optional<double> PowerMeter::joules() const {
  unsigned long long millijoules = 0;
  if (library_->total_energy == nullptr ||
      library_->total_energy(device_, &millijoules) != kSuccess) {
    return std::nullopt;
  }
  return 1e-3 * static_cast<double>(millijoules);
}

std::optional<double> PowerMeter::watts() const {
  unsigned int milliwatts = 0;
  if (library_->power_usage == nullptr || library_->power_usage(device_, &milliwatts) != kSuccess) {
    return std::nullopt;
  }
  return 1e-3 * milliwatts;
}

std::optional<double> PowerMeter::clock_mhz() const {
  unsigned int megahertz = 0;
  if (library_->clock_info == nullptr ||
      library_->clock_info(device_, kClockOfMultiprocessors, &megahertz) != kSuccess) {
    return std::nullopt;
  }
  return megahertz;
}

std::optional<GpuMemory> PowerMeter::memory() const {
  NvmlMemory memory = {};
  if (library_->memory_info == nullptr || library_->memory_info(device_, &memory) != kSuccess) {
    return std::nullopt;
  }
  return GpuMemory{static_cast<int64_t>(memory.total),
                   static_cast<int64_t>(memory.used),
                   static_cast<int64_t>(memory.free)};
}

std::optional<std::string> PowerMeter::name() const {
  std::array<char, 96> text = {};
  if (library_->device_name == nullptr ||
      library_->device_name(device_, text.data(), text.size()) != kSuccess) {
    return std::nullopt;
  }
  return text.data();
}

std::optional<std::vector<GpuProcess>> PowerMeter::processes() const {
  if (library_->running_processes == nullptr) {
    return std::nullopt;
  }
  // Processes may come while we ask, so leave room, and ask again where it was too little.
  std::vector<NvmlProcess> found(16);
  unsigned int count = 0;
  int status = kInsufficientSize;
  for (int attempt = 0; attempt < 4 && status == kInsufficientSize; ++attempt) {
    count = static_cast<unsigned int>(found.size());
    status = library_->running_processes(device_, &count, found.data());
    if (status == kInsufficientSize) {
      found.resize(2 * (found.size() + count));
    }
  }
  if (status != kSuccess) {
    return std::nullopt;
  }
  std::vector<GpuProcess> processes;
  for (unsigned int i = 0; i < count; ++i) {
    GpuProcess process{static_cast<int64_t>(found[i].pid), std::nullopt};
    if (found[i].used_bytes != kNotAvailable) {
      process.used_bytes = static_cast<int64_t>(found[i].used_bytes);
    }
    processes.push_back(process);
  }
  return processes;
}

}  // namespace penstock::gpu
