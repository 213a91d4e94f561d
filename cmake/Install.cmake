# cmake --install: the program, the libraries and headers, and a package, so that another project can say
#   find_package(Penstock REQUIRED)
#   target_link_libraries(mine PRIVATE Penstock::penstock)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY PENSTOCK_LIBRARIES)
add_library(penstock_all INTERFACE)
set_target_properties(penstock_all PROPERTIES EXPORT_NAME penstock)
target_link_libraries(penstock_all INTERFACE ${libraries})

install(TARGETS penstock_all penstock_flags ${libraries} EXPORT PenstockTargets)
install(DIRECTORY src/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)
install(EXPORT PenstockTargets NAMESPACE Penstock:: DESTINATION ${package})
install(FILES cmake/Cuda.cmake cmake/Nccl.cmake cmake/Torch.cmake DESTINATION ${package})
set(has_nccl OFF)
if(TARGET penstock_nccl)
  set(has_nccl ON)
endif()
configure_package_config_file(cmake/PenstockConfig.cmake.in ${PROJECT_BINARY_DIR}/PenstockConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/PenstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/PenstockConfig.cmake ${PROJECT_BINARY_DIR}/PenstockConfigVersion.cmake
        DESTINATION ${package})
