#include "penstock/comm/failure.h"

namespace penstock::comm {

Failure describe_failure(int32_t rank, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Timeout& timeout) {
    return {timeout.exit_code(), timeout.what()};  // says who and why by itself
  } catch (const Error& known) {
    return {known.exit_code(), cat("rank ", rank, " failed: ", known.what())};
  } catch (const std::exception& unknown) {
    return {ExitCode::Internal, cat("rank ", rank, " failed: ", unknown.what())};
  } catch (...) {
    return {ExitCode::Internal, cat("rank ", rank, " failed")};
  }
}

}  // namespace penstock::comm
