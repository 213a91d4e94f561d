// What Penstock asks of MPI. The answers are in a module of their own, penstock_mpi.so
// (mpi_module.cpp), which is opened where a launcher started several ranks (mpi_loader.h): the
// program itself starts on machines without MPI.
//
// All else of Penstock stays in the program. The module throws nothing and has no state but MPI's,
// so that there is one of each exception type and one interrupt flag, and the program has to export
// nothing; nor has a program that links the installed library.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "penstock/comm/own_collectives.h"

namespace penstock::comm {

// Empty where all went well, else what MPI says: "MPI_Isend failed: ...".
using MpiError = std::string;

// Handles of MPI, whose types differ between its libraries.
struct MpiRequest {
  uint64_t handle = 0;
};
struct MpiMessage {
  uint64_t handle = 0;
};
struct MpiCommunicator {
  uint64_t handle = 0;
};

// One thread at a time.
class MpiCalls {
 public:
  // "Open MPI v4.1.4"
  virtual std::string library() noexcept = 0;

  // First of all, on all ranks; `may_change_thread`: not only the thread that started it may call.
  [[nodiscard]] virtual MpiError start(bool& may_change_thread) noexcept = 0;
  [[nodiscard]] virtual MpiError find_ranks(int& rank, int& size) noexcept = 0;
  // Then this, also on all ranks at once; the calls below need it.
  [[nodiscard]] virtual MpiError open() noexcept = 0;
  // Frees what open() made. It may be opened again.
  [[nodiscard]] virtual MpiError close() noexcept = 0;

  // The highest tag that the library has.
  [[nodiscard]] virtual MpiError find_most_tag(int& tag) noexcept = 0;

  // The bytes must stay as they are until the request is done.
  [[nodiscard]] virtual MpiError send(
      int peer, int tag, const void* data, int bytes, MpiRequest& request) noexcept = 0;
  // Whether a message has come; it is then this rank's to take.
  [[nodiscard]] virtual MpiError probe(
      int peer, int tag, bool& has_come, MpiMessage& message, int& bytes) noexcept = 0;
  [[nodiscard]] virtual MpiError take(MpiMessage& message,
                                      void* data,
                                      int bytes,
                                      MpiRequest& request) noexcept = 0;

  // Notices travel apart from messages, from and to any rank.
  [[nodiscard]] virtual MpiError send_notice(int peer,
                                             const void* data,
                                             int bytes,
                                             MpiRequest& request) noexcept = 0;
  [[nodiscard]] virtual MpiError receive_notice(void* data,
                                                int bytes,
                                                MpiRequest& request) noexcept = 0;

  // MPI's own collectives, in place. These ranks of the job make a communicator at once; the call
  // waits for all of them. It is never freed, which would wait too.
  [[nodiscard]] virtual MpiError make_communicator(std::span<const int> ranks,
                                                   MpiCommunicator& communicator) noexcept = 0;
  [[nodiscard]] virtual MpiError all_reduce(MpiCommunicator communicator,
                                            void* data,
                                            int count,
                                            Element element,
                                            MpiRequest& request) noexcept = 0;
  // The sum is left at the root.
  [[nodiscard]] virtual MpiError reduce(MpiCommunicator communicator,
                                        int root,
                                        void* data,
                                        int count,
                                        Element element,
                                        MpiRequest& request) noexcept = 0;
  // The sum of a rank's chunk is left at the start of the data. The counts must stay as they are
  // until the request is done; so must those below.
  [[nodiscard]] virtual MpiError reduce_scatter(MpiCommunicator communicator,
                                                void* data,
                                                const int* counts,
                                                Element element,
                                                MpiRequest& request) noexcept = 0;
  [[nodiscard]] virtual MpiError all_gather(MpiCommunicator communicator,
                                            void* data,
                                            const int* byte_counts,
                                            const int* offsets,
                                            MpiRequest& request) noexcept = 0;
  [[nodiscard]] virtual MpiError broadcast(MpiCommunicator communicator,
                                           int root,
                                           void* data,
                                           int bytes,
                                           MpiRequest& request) noexcept = 0;

  // May be asked again of a request that is done.
  [[nodiscard]] virtual MpiError test(MpiRequest& request, bool& is_done) noexcept = 0;
  [[nodiscard]] virtual MpiError cancel(MpiRequest& request) noexcept = 0;

  // The last of all: MPI cannot be started again.
  [[nodiscard]] virtual MpiError finish() noexcept = 0;
  // Ends the processes of all ranks.
  virtual void abort(int exit_code) noexcept = 0;

 protected:
  ~MpiCalls() = default;
};

// The module's one symbol is the function `penstock_mpi_module`, which gives this.
struct MpiModule {
  const char* version;  // of Penstock
  MpiCalls* calls;
};
using FindMpiModule = const MpiModule*();

}  // namespace penstock::comm
