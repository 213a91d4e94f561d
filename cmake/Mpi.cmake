# penstock_mpi: MPI as an interface target, where there is one. A build without it is whole, but for jobs of several
# processes. Nothing links it but a module, which the program opens when a launcher started it: it starts without MPI.
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

  # penstock_mpi_module(SOURCE FOR penstock_comm): the module, in the folder where programs look for it.
  function(penstock_mpi_module source)
    cmake_parse_arguments(ARG "" "FOR" "" ${ARGN})
    add_library(penstock_mpi_module MODULE ${source})
    target_link_libraries(penstock_mpi_module PRIVATE penstock_flags penstock_own_flags penstock_mpi)
    set(installed ${CMAKE_INSTALL_LIBDIR}/penstock)
    file(RELATIVE_PATH from_programs ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/penstock)
    # Programs of the build are a folder deep, as they are where they are installed. An MPI outside the system's folders is
    # found where it was.
    set_target_properties(penstock_mpi_module PROPERTIES
      PREFIX "" OUTPUT_NAME penstock_mpi CXX_VISIBILITY_PRESET hidden INSTALL_RPATH_USE_LINK_PATH ON
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/app/${from_programs})
    install(TARGETS penstock_mpi_module LIBRARY DESTINATION ${installed})

    target_compile_definitions(${ARG_FOR} PRIVATE PENSTOCK_MPI_MODULE="${from_programs}/penstock_mpi.so")
    target_link_libraries(${ARG_FOR} PUBLIC ${CMAKE_DL_LIBS})
    # Programs of other projects are in a folder of their own.
    target_link_options(${ARG_FOR} INTERFACE $<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${installed}>)
    add_dependencies(${ARG_FOR} penstock_mpi_module)
  endfunction()
else()
  message(STATUS "MPI: none, so no jobs of several processes (tools/setup brings it)")
endif()
