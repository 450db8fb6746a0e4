# SPDX-License-Identifier: Apache-2.0
# Provides the target espalier_torch: LibTorch's headers, libtorch_cpu and libc10.
#
# A target of our own, because the CMake config of a CUDA build of LibTorch stops where there is no CUDA
# toolkit, and a CPU program needs none. A program that has already called find_package(Torch) keeps the
# libraries it found there (CUDA included), if their version is the one Espalier was built with.
#
#   Torch_DIR              folder of TorchConfig.cmake (as find_package(Torch) understands it)
#   ESPALIER_TORCH_HINT    where to look when Torch_DIR is not set

if(TARGET espalier_torch)
  return()
endif()
if(NOT Torch_DIR)
  if(DEFINED ENV{Torch_DIR})
    set(Torch_DIR "$ENV{Torch_DIR}")
  elseif(ESPALIER_TORCH_HINT)
    set(Torch_DIR "${ESPALIER_TORCH_HINT}/share/cmake/Torch")
  endif()
endif()
if(NOT EXISTS "${Torch_DIR}/TorchConfigVersion.cmake")
  message(FATAL_ERROR
    "espalier: LibTorch was not found (Torch_DIR is '${Torch_DIR}'). "
    "Run scripts/setup, or set Torch_DIR to the folder that holds TorchConfig.cmake; "
    "-DESPALIER_WITH_TORCH=OFF builds espalier::plan alone.")
endif()
cmake_path(ABSOLUTE_PATH Torch_DIR NORMALIZE OUTPUT_VARIABLE _espalier_torch_dir)
cmake_path(SET ESPALIER_TORCH_ROOT NORMALIZE "${_espalier_torch_dir}/../../..")
string(REGEX REPLACE "/$" "" ESPALIER_TORCH_ROOT "${ESPALIER_TORCH_ROOT}")
file(STRINGS "${Torch_DIR}/TorchConfigVersion.cmake" _espalier_torch_version REGEX "set\\(PACKAGE_VERSION ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ESPALIER_TORCH_VERSION "${_espalier_torch_version}")

add_library(espalier_torch INTERFACE IMPORTED GLOBAL)
if(TARGET torch)
  target_link_libraries(espalier_torch INTERFACE torch)
else()
  target_include_directories(espalier_torch SYSTEM INTERFACE
    "${ESPALIER_TORCH_ROOT}/include" "${ESPALIER_TORCH_ROOT}/include/torch/csrc/api/include")
  target_link_libraries(espalier_torch INTERFACE
    "${ESPALIER_TORCH_ROOT}/lib/libtorch_cpu.so" "${ESPALIER_TORCH_ROOT}/lib/libc10.so")
  target_link_options(espalier_torch INTERFACE "LINKER:-rpath,${ESPALIER_TORCH_ROOT}/lib")
endif()
# LibTorch's folder has headers of fmt, which shadow the system's, but no compiled fmt to go with them.
target_compile_definitions(espalier_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO FMT_HEADER_ONLY=1)
