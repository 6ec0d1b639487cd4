# Compiler, linker and cache settings shared by every target of this project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  message(WARNING "Trireme is tested with GCC and Clang; ${CMAKE_CXX_COMPILER_ID} may need other flags")
endif()

# One set of code-generation flags for libraries and programs alike: the shared precompiled header is only accepted
# where they are equal, and CMake's own switch would give programs -fPIE and libraries -fPIC.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
set(TRIREME_COMPILE_OPTIONS -fPIC -fno-semantic-interposition
    # std::sqrt becomes one instruction and loops vectorise; no result changes. Never -ffast-math: the same numbers on
    # any number of ranks depend on it.
    -fno-math-errno)
if(TRIREME_ARCH)
  list(APPEND TRIREME_COMPILE_OPTIONS -march=${TRIREME_ARCH})
endif()
# __FILE__ and source_location say src/comm/x.cpp wherever the checkout lies: same messages, and cache hits across
# checkouts. Twice, because ccache makes the paths that it passes on relative to the build folder.
file(RELATIVE_PATH trireme_source_from_build "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}")
list(APPEND TRIREME_COMPILE_OPTIONS "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/="
     "-fmacro-prefix-map=${trireme_source_from_build}=")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Lets ccache look through precompiled headers.
  list(APPEND TRIREME_COMPILE_OPTIONS -fpch-preprocess)
endif()

set(TRIREME_LINK_OPTIONS "")
if(TRIREME_SANITIZE)
  list(APPEND TRIREME_COMPILE_OPTIONS -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  list(APPEND TRIREME_LINK_OPTIONS -fsanitize=address,undefined)
endif()

# CMake's Release is -O3 -DNDEBUG. Assertion levels are our own (base), so NDEBUG only silences the libraries.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

# KaMPIng's set, less what GCC reports wrongly once it inlines at -O3 (null-dereference) and what only advises
# attributes (suggest-attribute, noexcept).
set(TRIREME_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wnon-virtual-dtor
    -Woverloaded-virtual -Wundef -Wunused -Wcast-align)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Plain -Wshadow would forbid constructor parameters named like the members they set.
  list(APPEND TRIREME_WARNINGS -Wshadow=local -Wsuggest-override -Wduplicated-cond -Wlogical-op
       # A note on an ABI change in GCC 10 that concerns nobody who builds everything with one compiler.
       -Wno-psabi
       # GCC 12 reports std::string's own appends at -O3 (its bug 105651).
       -Wno-restrict)
else()
  list(APPEND TRIREME_WARNINGS -Wshadow -Wextra-semi)
endif()
if(TRIREME_WERROR)
  list(APPEND TRIREME_WARNINGS -Werror)
endif()

if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TRIREME_CCACHE_PROGRAM ccache)
  mark_as_advanced(TRIREME_CCACHE_PROGRAM)
  if(TRIREME_CCACHE_PROGRAM)
    # Precompiled headers change their time stamp but not their content; paths below the checkout become relative, so
    # that a second clone finds what the first compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
        CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TRIREME_CCACHE_PROGRAM})
  endif()
endif()

# mold links a test in a second where ld takes four. GCC knows -fuse-ld=mold from version 12.1.
if(TRIREME_MOLD)
  find_program(TRIREME_MOLD_PROGRAM mold)
  mark_as_advanced(TRIREME_MOLD_PROGRAM)
  if(TRIREME_MOLD_PROGRAM AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12.1))
    list(APPEND TRIREME_LINK_OPTIONS -fuse-ld=mold)
  endif()
endif()

# Applies all of the above to one target. COMPILE_OPTIONS of a room come last and so win.
function(trireme_compile_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${TRIREME_COMPILE_OPTIONS} ${TRIREME_WARNINGS} ${ARGN})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE" OR type STREQUAL "SHARED_LIBRARY" OR type STREQUAL "MODULE_LIBRARY")
    target_link_options(${target} PRIVATE ${TRIREME_LINK_OPTIONS})
  endif()
endfunction()
