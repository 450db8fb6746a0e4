# SPDX-License-Identifier: Apache-2.0
# Installs BUILD into an empty PREFIX, and fails if a file of the package names a folder of this machine: only the
# hint where LibTorch was may.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)

file(GLOB_RECURSE files ${PREFIX}/*.cmake)
if(NOT files)
  message(FATAL_ERROR "package: no CMake file was installed below ${PREFIX}")
endif()
foreach(file ${files})
  file(STRINGS ${file} lines)
  foreach(line IN LISTS lines)
    string(FIND "${line}" "${SOURCE}" at)
    if(at GREATER_EQUAL 0 AND NOT line MATCHES "set\\(ESPALIER_TORCH_HINT ")
      message(FATAL_ERROR "package: ${file} names a folder of the build: ${line}")
    endif()
  endforeach()
endforeach()
