// The whole of penstock_mpi.so; see mpi_calls.h.
#include <array>
#include <cstring>
#include <string>

#include <mpi.h>

#include "penstock/base/version.h"
#include "penstock/comm/mpi_calls.h"

namespace penstock::comm {

namespace {

// A handle is a pointer in some libraries, a number in others.
template <typename Native, typename Ours>
Native to_native(const Ours& ours) {
  static_assert(sizeof(Native) <= sizeof(ours.handle));
  Native native = {};
  std::memcpy(&native, &ours.handle, sizeof(native));
  return native;
}

template <typename Native, typename Ours>
void from_native(const Native& native, Ours& ours) {
  ours.handle = 0;
  std::memcpy(&ours.handle, &native, sizeof(native));
}

MpiError error_of(int result, const char* call) {
  if (result == MPI_SUCCESS) {
    return {};
  }
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  return std::string(call) + " failed: " + text.data();
}

class Calls final : public MpiCalls {
 public:
  std::string library() noexcept override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version = {};
    int length = 0;
    MPI_Get_library_version(version.data(), &length);
    return {version.data(), std::strcspn(version.data(), ",\n")};
  }

  MpiError start(bool& may_change_thread) noexcept override {
    int level = 0;
    const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    may_change_thread = level >= MPI_THREAD_SERIALIZED;
    return error_of(result, "MPI_Init_thread");
  }

  MpiError find_ranks(int& rank, int& size) noexcept override {
    if (const int result = MPI_Comm_rank(MPI_COMM_WORLD, &rank); result != MPI_SUCCESS) {
      return error_of(result, "MPI_Comm_rank");
    }
    return error_of(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  }

  MpiError open() noexcept override {
    for (MPI_Comm* comm : {&messages_, &notices_}) {
      if (const int result = MPI_Comm_dup(MPI_COMM_WORLD, comm); result != MPI_SUCCESS) {
        return error_of(result, "MPI_Comm_dup");
      }
      if (const int result = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
          result != MPI_SUCCESS) {
        return error_of(result, "MPI_Comm_set_errhandler");
      }
    }
    return {};
  }

  MpiError send(
      int peer, int tag, const void* data, int bytes, MpiRequest& request) noexcept override {
    return send_on(messages_, peer, tag, data, bytes, request);
  }

  MpiError probe(
      int peer, int tag, bool& has_come, MpiMessage& message, int& bytes) noexcept override {
    int flag = 0;
    MPI_Message native = MPI_MESSAGE_NULL;
    MPI_Status status = {};
    const int result = MPI_Improbe(peer, tag, messages_, &flag, &native, &status);
    has_come = result == MPI_SUCCESS && flag != 0;
    if (!has_come) {
      return error_of(result, "MPI_Improbe");
    }
    from_native(native, message);
    return error_of(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
  }

  MpiError take(MpiMessage& message, void* data, int bytes, MpiRequest& request) noexcept override {
    auto native = to_native<MPI_Message>(message);
    MPI_Request taking = MPI_REQUEST_NULL;
    const int result = MPI_Imrecv(data, bytes, MPI_BYTE, &native, &taking);
    from_native(native, message);
    from_native(taking, request);
    return error_of(result, "MPI_Imrecv");
  }

  MpiError send_notice(int peer,
                       const void* data,
                       int bytes,
                       MpiRequest& request) noexcept override {
    return send_on(notices_, peer, 0, data, bytes, request);
  }

  MpiError receive_notice(void* data, int bytes, MpiRequest& request) noexcept override {
    MPI_Request native = MPI_REQUEST_NULL;
    const int result = MPI_Irecv(data, bytes, MPI_BYTE, MPI_ANY_SOURCE, 0, notices_, &native);
    from_native(native, request);
    return error_of(result, "MPI_Irecv");
  }

  MpiError test(MpiRequest& request, bool& is_done) noexcept override {
    auto native = to_native<MPI_Request>(request);
    int flag = 0;
    const int result = MPI_Test(&native, &flag, MPI_STATUS_IGNORE);
    from_native(native, request);
    is_done = flag != 0;
    return error_of(result, "MPI_Test");
  }

  MpiError cancel(MpiRequest& request) noexcept override {
    auto native = to_native<MPI_Request>(request);
    if (const int result = MPI_Cancel(&native); result != MPI_SUCCESS) {
      return error_of(result, "MPI_Cancel");
    }
    const int result = MPI_Wait(&native, MPI_STATUS_IGNORE);
    from_native(native, request);
    return error_of(result, "MPI_Wait");
  }

  MpiError finish() noexcept override { return error_of(MPI_Finalize(), "MPI_Finalize"); }

  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static MpiError send_on(
      MPI_Comm comm, int peer, int tag, const void* data, int bytes, MpiRequest& request) {
    MPI_Request native = MPI_REQUEST_NULL;
    const int result = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm, &native);
    from_native(native, request);
    return error_of(result, "MPI_Isend");
  }

  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm notices_ = MPI_COMM_NULL;
};

Calls calls;

}  // namespace

extern "C" [[gnu::visibility("default")]] const MpiModule* penstock_mpi_module() {
  static constexpr MpiModule kModule = {kVersion, &calls};
  return &kModule;
}

}  // namespace penstock::comm
