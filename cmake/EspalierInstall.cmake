# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, libraries, commands and the package config. Two export sets, so that a program that
# wants espalier::plan alone needs no LibTorch.
include(CMakePackageConfigHelpers)

set(_espalier_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
install(TARGETS espalier_plan EXPORT espalier-plan FILE_SET HEADERS)
install(EXPORT espalier-plan NAMESPACE espalier:: DESTINATION ${_espalier_package_dir})
install(TARGETS espalier_command RUNTIME)
if(ESPALIER_WITH_TORCH)
  install(TARGETS espalier_comm espalier_espalier EXPORT espalier-torch FILE_SET HEADERS)
  install(EXPORT espalier-torch NAMESPACE espalier:: DESTINATION ${_espalier_package_dir})
  install(TARGETS espalier_train RUNTIME)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/EspalierTorch.cmake DESTINATION ${_espalier_package_dir})
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/espalier-config.cmake.in
  ${CMAKE_BINARY_DIR}/espalier-config.cmake INSTALL_DESTINATION ${_espalier_package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/espalier-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/espalier-config.cmake ${CMAKE_BINARY_DIR}/espalier-config-version.cmake
  DESTINATION ${_espalier_package_dir})
