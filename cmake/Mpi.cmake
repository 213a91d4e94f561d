# penstock_mpi: MPI as an interface target, where there is one. A build without it is whole, but for jobs of several
# processes.
option(PENSTOCK_WITH_MPI "Use MPI where it is found" ON)
if(PENSTOCK_WITH_MPI)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND)
  # We use MPI's C interface; its old C++ one is a library more to load.
  set(penstock_mpi_libraries ${MPI_CXX_LIBRARIES})
  list(FILTER penstock_mpi_libraries EXCLUDE REGEX "mpi_?cxx")
  add_library(penstock_mpi INTERFACE)
  target_include_directories(penstock_mpi SYSTEM INTERFACE ${MPI_CXX_INCLUDE_DIRS})
  target_compile_definitions(penstock_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(penstock_mpi INTERFACE ${penstock_mpi_libraries})
  message(STATUS "MPI: ${MPIEXEC_EXECUTABLE} (MPI ${MPI_CXX_VERSION})")
else()
  message(STATUS "MPI: none, so no jobs of several processes (tools/setup brings it)")
endif()
