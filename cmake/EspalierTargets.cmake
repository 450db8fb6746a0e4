# SPDX-License-Identifier: Apache-2.0
# espalier_library(NAME), espalier_executable(NAME ...) and espalier_test(NAME ...): one place for flags.

function(espalier_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # False alarms: on strings and optionals in aggregates; in vector<bool> of LibTorch's autograd functions (g++ 14).
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-array-bounds)
    # Collecting garbage below 1 GB costs a source that reads LibTorch a tenth of its time.
    target_compile_options(${target} PRIVATE "SHELL:--param ggc-min-heapsize=1000000")
  endif()
  if(ESPALIER_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(ESPALIER_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ESPALIER_SANITIZE} -fno-omit-frame-pointer -g1)
    target_link_options(${target} PUBLIC -fsanitize=${ESPALIER_SANITIZE})
  endif()
endfunction()

# espalier_library(plan LINKS a b): the library espalier::plan; its sources come from the folders below it.
function(espalier_library name)
  cmake_parse_arguments(arg "" "" "LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(espalier_${name})
  add_library(espalier::${name} ALIAS espalier_${name})
  set_target_properties(espalier_${name} PROPERTIES EXPORT_NAME ${name})
  espalier_flags(espalier_${name})
  target_include_directories(espalier_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(espalier_${name} PUBLIC ${arg_LINKS} PRIVATE ${arg_PRIVATE_LINKS})
endfunction()

# espalier_sources(plan HEADERS public.hpp ... SOURCES a.cpp private.hpp ...): adds files of the current folder.
# Only HEADERS are installed.
function(espalier_sources name)
  cmake_parse_arguments(arg "" "" "HEADERS;SOURCES" ${ARGN})
  list(TRANSFORM arg_HEADERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM arg_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(espalier_${name} PRIVATE ${arg_SOURCES})
  target_sources(espalier_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
endfunction()

# For targets that see LibTorch: compiles several of their sources as one, since reading LibTorch's headers takes far longer
# than reading ours. (A precompiled header saves less than half of that: its templates are instantiated in every source.)
function(espalier_read_torch_once target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
endfunction()

# For tests: optimizing what runs once takes longer than running it. What they test is optimized.
function(espalier_compile_quickly target)
  target_compile_options(${target} PRIVATE -O0)
endfunction()

# espalier_executable(NAME SOURCES ... LINKS ... [TORCH])
function(espalier_executable name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  espalier_flags(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_LINKS})
  if(arg_TORCH)
    espalier_read_torch_once(${name})
  endif()
endfunction()

# espalier_test(NAME SOURCES ... LINKS ... LABELS unit|ranks|process|cli|package [TIMEOUT seconds] [PROCESSORS n]
#               [TORCH])
# One GoogleTest program; every TEST becomes a ctest entry "NAME.Suite.Case".
function(espalier_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT;PROCESSORS" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(arg_TORCH)
    espalier_executable(${name} TORCH SOURCES ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/torch_main.cpp
                        LINKS ${arg_LINKS} GTest::gtest GTest::gmock)
  else()
    espalier_executable(${name} SOURCES ${arg_SOURCES} LINKS ${arg_LINKS} GTest::gtest_main GTest::gmock)
  endif()
  espalier_compile_quickly(${name})
  target_compile_definitions(${name} PRIVATE
    ESPALIER_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    ESPALIER_TEST_BIN="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES
    PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS})
endfunction()
