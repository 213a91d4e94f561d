// The whole of penstock_mpi.so; see mpi_calls.h.
#include <array>
#include <cstring>
#include <span>
#include <string>

#include <mpi.h>

#include "penstock/base/version.h"
#include "penstock/comm/mpi_calls.h"
#include "penstock/kernels/cpu.h"

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

// As kernels::add: the module has nothing of the program.
PENSTOCK_CPU_CLONES void add_bf16(const kernels::Bf16* values, kernels::Bf16* sum, int count) {
  for (int i = 0; i < count; ++i) {
    sum[i] = kernels::from_float<kernels::Bf16>(kernels::to_float(values[i]) +
                                                kernels::to_float(sum[i]));
  }
}

void bf16_sum(void* values, void* sum, int* count, MPI_Datatype*) {
  add_bf16(static_cast<const kernels::Bf16*>(values), static_cast<kernels::Bf16*>(sum), *count);
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
    if (const int result = MPI_Op_create(bf16_sum, 1, &bf16_sum_); result != MPI_SUCCESS) {
      return error_of(result, "MPI_Op_create");
    }
    for (MPI_Comm* comm : {&messages_, &notices_, &collectives_}) {
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

  MpiError close() noexcept override {
    for (MPI_Comm* comm : {&messages_, &notices_, &collectives_}) {
      if (const int result = MPI_Comm_free(comm); result != MPI_SUCCESS) {
        return error_of(result, "MPI_Comm_free");
      }
    }
    return error_of(MPI_Op_free(&bf16_sum_), "MPI_Op_free");
  }

  MpiError find_most_tag(int& tag) noexcept override {
    int* most = nullptr;
    int is_known = 0;
    const int result = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &is_known);
    tag = result == MPI_SUCCESS && is_known != 0 ? *most : 32767;  // what the standard promises
    return error_of(result, "MPI_Comm_get_attr");
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
    return start_native("MPI_Irecv", request, [&](MPI_Request* native) {
      return MPI_Irecv(data, bytes, MPI_BYTE, MPI_ANY_SOURCE, 0, notices_, native);
    });
  }

  MpiError make_communicator(std::span<const int> ranks,
                             MpiCommunicator& communicator) noexcept override {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm native = MPI_COMM_NULL;
    if (const int result = MPI_Comm_group(collectives_, &all); result != MPI_SUCCESS) {
      return error_of(result, "MPI_Comm_group");
    }
    if (const int result = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
        result != MPI_SUCCESS) {
      return error_of(result, "MPI_Group_incl");
    }
    if (const int result = MPI_Comm_create_group(collectives_, some, 0, &native);
        result != MPI_SUCCESS) {
      return error_of(result, "MPI_Comm_create_group");
    }
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    from_native(native, communicator);
    return error_of(MPI_Comm_set_errhandler(native, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  MpiError all_reduce(MpiCommunicator communicator,
                      void* data,
                      int count,
                      Element element,
                      MpiRequest& request) noexcept override {
    return start_native("MPI_Iallreduce", request, [&](MPI_Request* native) {
      return MPI_Iallreduce(MPI_IN_PLACE,
                            data,
                            count,
                            type_of(element),
                            sum_of(element),
                            to_native<MPI_Comm>(communicator),
                            native);
    });
  }

  MpiError reduce(MpiCommunicator communicator,
                  int root,
                  void* data,
                  int count,
                  Element element,
                  MpiRequest& request) noexcept override {
    const auto comm = to_native<MPI_Comm>(communicator);
    int rank = 0;
    if (const int result = MPI_Comm_rank(comm, &rank); result != MPI_SUCCESS) {
      return error_of(result, "MPI_Comm_rank");
    }
    return start_native("MPI_Ireduce", request, [&](MPI_Request* native) {
      return MPI_Ireduce(rank == root ? MPI_IN_PLACE : data,
                         data,
                         count,
                         type_of(element),
                         sum_of(element),
                         root,
                         comm,
                         native);
    });
  }

  MpiError reduce_scatter(MpiCommunicator communicator,
                          void* data,
                          const int* counts,
                          Element element,
                          MpiRequest& request) noexcept override {
    return start_native("MPI_Ireduce_scatter", request, [&](MPI_Request* native) {
      return MPI_Ireduce_scatter(MPI_IN_PLACE,
                                 data,
                                 counts,
                                 type_of(element),
                                 sum_of(element),
                                 to_native<MPI_Comm>(communicator),
                                 native);
    });
  }

  MpiError all_gather(MpiCommunicator communicator,
                      void* data,
                      const int* byte_counts,
                      const int* offsets,
                      MpiRequest& request) noexcept override {
    return start_native("MPI_Iallgatherv", request, [&](MPI_Request* native) {
      return MPI_Iallgatherv(MPI_IN_PLACE,
                             0,
                             MPI_BYTE,
                             data,
                             byte_counts,
                             offsets,
                             MPI_BYTE,
                             to_native<MPI_Comm>(communicator),
                             native);
    });
  }

  MpiError broadcast(MpiCommunicator communicator,
                     int root,
                     void* data,
                     int bytes,
                     MpiRequest& request) noexcept override {
    return start_native("MPI_Ibcast", request, [&](MPI_Request* native) {
      return MPI_Ibcast(data, bytes, MPI_BYTE, root, to_native<MPI_Comm>(communicator), native);
    });
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
  // Of a call that leaves a request.
  template <typename Call>
  static MpiError start_native(const char* name, MpiRequest& request, const Call& call) {
    MPI_Request native = MPI_REQUEST_NULL;
    const int result = call(&native);
    from_native(native, request);
    return error_of(result, name);
  }

  static MpiError send_on(
      MPI_Comm comm, int peer, int tag, const void* data, int bytes, MpiRequest& request) {
    return start_native("MPI_Isend", request, [&](MPI_Request* native) {
      return MPI_Isend(data, bytes, MPI_BYTE, peer, tag, comm, native);
    });
  }

  static MPI_Datatype type_of(Element element) {
    return element == Element::Float32 ? MPI_FLOAT : MPI_UINT16_T;
  }
  MPI_Op sum_of(Element element) const { return element == Element::Float32 ? MPI_SUM : bf16_sum_; }

  MPI_Comm messages_ = MPI_COMM_NULL;
  MPI_Comm notices_ = MPI_COMM_NULL;
  MPI_Comm collectives_ = MPI_COMM_NULL;  // only communicators are made of it
  MPI_Op bf16_sum_ = MPI_OP_NULL;
};

Calls calls;

}  // namespace

extern "C" [[gnu::visibility("default")]] const MpiModule* penstock_mpi_module() {
  static constexpr MpiModule kModule = {kVersion, &calls};
  return &kModule;
}

}  // namespace penstock::comm
