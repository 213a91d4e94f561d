#include "penstock/comm/mpi_loader.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include "penstock/base/error.h"
#include "penstock/base/version.h"
#include "penstock/comm/launcher.h"

namespace penstock::comm {

namespace {

namespace fs = std::filesystem;

// From the folder of the program, as in "../lib/penstock/penstock_mpi.so".
constexpr const char* kModule = PENSTOCK_MPI_MODULE;

// Where the loader looks for this program's libraries. An empty entry, which linkers and people
// leave behind, means the current folder: not for us.
std::vector<fs::path> loader_folders() {
  void* const self = ::dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo head = {};
  if (self == nullptr || ::dlinfo(self, RTLD_DI_SERINFOSIZE, &head) != 0) {
    return {};
  }
  const auto storage = std::make_unique<std::byte[]>(head.dls_size);
  auto* const info = reinterpret_cast<Dl_serinfo*>(storage.get());
  if (::dlinfo(self, RTLD_DI_SERINFOSIZE, info) != 0 ||
      ::dlinfo(self, RTLD_DI_SERINFO, info) != 0) {
    return {};
  }
  std::vector<fs::path> folders;
  const Dl_serpath* const entries = info->dls_serpath;
  for (const Dl_serpath& entry : std::span(entries, info->dls_cnt)) {
    if (fs::path folder = entry.dls_name; folder.is_absolute()) {
      folders.push_back(std::move(folder));
    }
  }
  return folders;
}

ConfigError cannot_open(const std::string& why) {
  const int32_t ranks = launched_ranks();
  return ConfigError(cat("a launcher started ",
                         ranks,
                         " ranks, but ",
                         why,
                         ", or start penstock without the launcher, with --ranks ",
                         ranks,
                         ", for ranks as threads"));
}

std::string last_loader_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

void require_own_version(const fs::path& file, const MpiModule* module) {
  if (module == nullptr || std::string_view(module->version) != kVersion) {
    throw cannot_open(cat(
        file.string(),
        module == nullptr ? " is no module of Penstock" : cat(" is of Penstock ", module->version),
        ", and this is Penstock ",
        kVersion,
        "; install the two together (cmake --install)"));
  }
}

}  // namespace

fs::path mpi_module_file() {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const fs::path first = (program.parent_path() / kModule).lexically_normal();
  std::vector<fs::path> places = {first};
  for (const fs::path& folder : loader_folders()) {
    places.push_back(folder / first.filename());
  }
  std::error_code ignored;
  const auto found = std::find_if(places.begin(), places.end(), [&](const fs::path& place) {
    return fs::exists(place, ignored);
  });
  return found == places.end() ? first : *found;
}

MpiCalls& load_mpi(const fs::path& module_file) {
  const std::string name = module_file.string();
  // MPI opens modules of its own, and before Open MPI 5 they expect to find its symbols.
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const std::string reason = last_loader_error();
    // The loader's words begin with the file that it did not find.
    if (reason.starts_with(cat(name, ": cannot open"))) {
      throw cannot_open(cat(name,
                            ", through which they talk, is missing; install it beside the program "
                            "(cmake --install)"));
    }
    throw cannot_open(cat("MPI cannot be loaded here (",
                          reason,
                          "); install the MPI that penstock was built with (Open MPI on Debian: "
                          "openmpi-bin and libopenmpi3), load your cluster's module of it"));
  }
  auto* const find = reinterpret_cast<FindMpiModule*>(::dlsym(handle, "penstock_mpi_module"));
  const MpiModule* const module = find == nullptr ? nullptr : find();
  require_own_version(module_file, module);
  return *module->calls;
}

}  // namespace penstock::comm
