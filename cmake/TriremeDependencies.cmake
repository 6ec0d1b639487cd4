# Finds every library that Trireme needs and gives each one a short, uniform name: trireme_dep::<name>.
#
# The same file serves the project's own configure step and an installed package's find_package(trireme), so both see
# the same targets. Nothing is downloaded here: `./bootstrap deps` does that. Everything is looked for before anything
# is refused, so that a person reads one complete list of what is missing and how to get it.
#
# Searched, in CMake's usual order: CMAKE_PREFIX_PATH (modules, Spack, prefixes of a site), then the system.
# LibTorch: TRIREME_LIBTORCH (variable or environment), then .deps/ of this checkout, then CMAKE_PREFIX_PATH.

include_guard(GLOBAL)

set_property(GLOBAL PROPERTY TRIREME_DEPENDENCY_ROWS "")
set_property(GLOBAL PROPERTY TRIREME_DEPENDENCY_MISSING "")
set_property(GLOBAL PROPERTY TRIREME_DEPENDENCY_PACKAGES "")

# Notes one row of the table. NEED is required, tests or optional; PACKAGE is Debian's name of what brings it.
function(trireme_note name found version where)
  cmake_parse_arguments(NOTE "" "NEED;PACKAGE;SETTING" "" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY TRIREME_DEPENDENCY_ROWS "${name}|${found}|${version}|${where}")
  # The version header and `trireme env` report these.
  string(TOUPPER "${name}" upper)
  string(REGEX REPLACE "[^A-Z0-9]" "_" upper "${upper}")
  set_property(GLOBAL PROPERTY TRIREME_VERSION_OF_${upper} "${version}")
  if(NOT found AND NOT NOTE_NEED STREQUAL "optional")
    set(line "${name}")
    if(NOTE_SETTING)
      string(APPEND line ": ${NOTE_SETTING}")
    endif()
    set_property(GLOBAL APPEND PROPERTY TRIREME_DEPENDENCY_MISSING "${line}")
    if(NOTE_PACKAGE)
      set_property(GLOBAL APPEND PROPERTY TRIREME_DEPENDENCY_PACKAGES "${NOTE_PACKAGE}")
    endif()
  endif()
endfunction()

# Wraps an existing target under our name. An ALIAS would do for most, but some configs define targets that are not
# global, and an interface library also lets us add what a config forgot.
function(trireme_wrap name target)
  if(NOT TARGET trireme_dep::${name})
    add_library(trireme_dep::${name} INTERFACE IMPORTED GLOBAL)
    set_property(TARGET trireme_dep::${name} PROPERTY INTERFACE_LINK_LIBRARIES "${target}")
  endif()
endfunction()

# A dependency that ships a CMake config: trireme_find_config(name Package NEED .. PACKAGE .. TARGETS a b VERSION v).
macro(trireme_find_config name package)
  cmake_parse_arguments(DEP "" "NEED;PACKAGE;VERSION" "TARGETS" ${ARGN})
  find_package(${package} ${DEP_VERSION} CONFIG QUIET)
  set(dep_found FALSE)
  if(${package}_FOUND)
    foreach(dep_target IN LISTS DEP_TARGETS)
      if(TARGET ${dep_target} AND NOT dep_found)
        set(dep_found TRUE)
        trireme_wrap(${name} ${dep_target})
      endif()
    endforeach()
  endif()
  trireme_note(${name} ${dep_found} "${${package}_VERSION}" "${${package}_DIR}"
               NEED ${DEP_NEED} PACKAGE ${DEP_PACKAGE})
endmacro()

# A C library with a header and no usable config: trireme_find_plain(name HEADER h LIBRARY l PKGCONFIG p ...).
function(trireme_find_plain name)
  cmake_parse_arguments(DEP "" "NEED;PACKAGE;HEADER;LIBRARY;PKGCONFIG" "" ${ARGN})
  find_path(TRIREME_${name}_INCLUDE ${DEP_HEADER})
  find_library(TRIREME_${name}_LIBRARY ${DEP_LIBRARY})
  mark_as_advanced(TRIREME_${name}_INCLUDE TRIREME_${name}_LIBRARY)
  set(version "")
  set(found FALSE)
  if(TRIREME_${name}_INCLUDE AND TRIREME_${name}_LIBRARY)
    set(found TRUE)
    if(PKG_CONFIG_FOUND)
      pkg_get_version(${DEP_PKGCONFIG} version)
    endif()
    if(NOT TARGET trireme_dep::${name})
      add_library(trireme_dep::${name} INTERFACE IMPORTED GLOBAL)
      set_property(TARGET trireme_dep::${name} PROPERTY INTERFACE_LINK_LIBRARIES "${TRIREME_${name}_LIBRARY}")
      trireme_system_include(trireme_dep::${name} "${TRIREME_${name}_INCLUDE}")
    endif()
  endif()
  trireme_note(${name} ${found} "${version}" "${TRIREME_${name}_LIBRARY}" NEED ${DEP_NEED} PACKAGE ${DEP_PACKAGE})
endfunction()

# pkg-config is a convenience: it only supplies version numbers for the table.
find_package(PkgConfig QUIET)
function(pkg_get_version module out)
  execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion ${module}
                  OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Adds an include folder, but never /usr/include itself: naming it breaks <cstdlib>'s include_next.
function(trireme_system_include target)
  foreach(folder IN LISTS ARGN)
    if(NOT folder STREQUAL "/usr/include")
      set_property(TARGET ${target} APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${folder}")
      set_property(TARGET ${target} APPEND PROPERTY INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${folder}")
    endif()
  endforeach()
endfunction()

# ---- MPI -----------------------------------------------------------------------------------------------------------
# The C interface only; MPI's removed C++ bindings would drag in libmpi_cxx and its warnings.
set(MPI_CXX_SKIP_MPICXX TRUE)
find_package(MPI QUIET COMPONENTS CXX)
set(TRIREME_MPI_FLAVOUR "")
if(MPI_CXX_FOUND)
  trireme_wrap(MPI MPI::MPI_CXX)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mpi_says ERROR_QUIET)
  set(mpi_version "MPI ${MPI_CXX_VERSION}")
  if(mpi_says MATCHES "\\((Open MPI|OpenRTE)\\) ([0-9.]+)")
    set(TRIREME_MPI_FLAVOUR "openmpi")
    set(mpi_version "Open MPI ${CMAKE_MATCH_2}")
  elseif(mpi_says MATCHES "Version: +([0-9.]+)")
    set(TRIREME_MPI_FLAVOUR "mpich")
    set(mpi_version "MPICH ${CMAKE_MATCH_1}")
  endif()
  trireme_note(MPI TRUE "${mpi_version}" "${MPIEXEC_EXECUTABLE}" NEED required)
else()
  trireme_note(MPI FALSE "" "" NEED required PACKAGE "libopenmpi-dev openmpi-bin")
endif()

# ---- parallel HDF5 -------------------------------------------------------------------------------------------------
# Debian keeps one HDF5 per MPI in folders of its own and h5pcc hides them from FindHDF5; look there first, then in
# prefixes. Only the C API is used: the C++ one is not thread-aware and knows nothing of MPI.
find_path(TRIREME_HDF5_INCLUDE hdf5.h PATH_SUFFIXES hdf5/openmpi hdf5/mpich openmpi HINTS ENV HDF5_ROOT HDF5_ROOT ENV HDF5_DIR)
if(TRIREME_HDF5_INCLUDE MATCHES "hdf5/(openmpi|mpich)$")
  find_library(TRIREME_HDF5_LIBRARY hdf5 PATH_SUFFIXES hdf5/${CMAKE_MATCH_1})
endif()
find_library(TRIREME_HDF5_LIBRARY hdf5 HINTS ENV HDF5_ROOT HDF5_ROOT ENV HDF5_DIR PATH_SUFFIXES lib lib64)
mark_as_advanced(TRIREME_HDF5_INCLUDE TRIREME_HDF5_LIBRARY)
set(hdf5_found FALSE)
set(hdf5_setting "")
set(hdf5_version "")
if(TRIREME_HDF5_INCLUDE AND TRIREME_HDF5_LIBRARY)
  set(hdf5_parallel FALSE)
  foreach(header H5pubconf.h H5pubconf-64.h)
    if(EXISTS "${TRIREME_HDF5_INCLUDE}/${header}")
      file(STRINGS "${TRIREME_HDF5_INCLUDE}/${header}" parallel_line REGEX "^#define H5_HAVE_PARALLEL 1")
      if(parallel_line)
        set(hdf5_parallel TRUE)
      endif()
    endif()
  endforeach()
  file(STRINGS "${TRIREME_HDF5_INCLUDE}/H5public.h" info REGEX "#define H5_VERS_INFO")
  if(info MATCHES "version: ([0-9.]+)")
    set(hdf5_version "${CMAKE_MATCH_1}")
  endif()
  if(hdf5_parallel)
    set(hdf5_found TRUE)
    if(NOT TARGET trireme_dep::HDF5)
      add_library(trireme_dep::HDF5 INTERFACE IMPORTED GLOBAL)
      set_property(TARGET trireme_dep::HDF5 PROPERTY INTERFACE_LINK_LIBRARIES
                   "${TRIREME_HDF5_LIBRARY};trireme_dep::MPI")
      trireme_system_include(trireme_dep::HDF5 "${TRIREME_HDF5_INCLUDE}")
    endif()
  else()
    set(hdf5_setting "${TRIREME_HDF5_INCLUDE} is an HDF5 without MPI; a parallel one is needed")
  endif()
endif()
trireme_note(HDF5 ${hdf5_found} "${hdf5_version}" "${TRIREME_HDF5_LIBRARY}" NEED required
             PACKAGE libhdf5-openmpi-dev SETTING "${hdf5_setting}")

# ---- Kokkos --------------------------------------------------------------------------------------------------------
# A site's own Kokkos (4 or newer, any backend) comes with a config and is used as it is. Debian's, a part of Trilinos,
# has a config that names an include folder which does not exist, so it is found by hand.
set(TRIREME_KOKKOS_BACKENDS "")
find_package(Kokkos 4 CONFIG QUIET)
if(NOT Kokkos_FOUND)
  find_package(Kokkos 5 CONFIG QUIET)
endif()
if(Kokkos_FOUND AND TARGET Kokkos::kokkos)
  trireme_wrap(Kokkos Kokkos::kokkos)
  string(REPLACE ";" " " TRIREME_KOKKOS_BACKENDS "${Kokkos_DEVICES}")
  trireme_note(Kokkos TRUE "${Kokkos_VERSION} (${TRIREME_KOKKOS_BACKENDS})" "${Kokkos_DIR}" NEED required)
else()
  find_path(TRIREME_KOKKOS_INCLUDE KokkosCore_config.h PATH_SUFFIXES trilinos)
  find_library(TRIREME_KOKKOS_LIBRARY NAMES trilinos_kokkoscore kokkoscore)
  mark_as_advanced(TRIREME_KOKKOS_INCLUDE TRIREME_KOKKOS_LIBRARY)
  if(TRIREME_KOKKOS_INCLUDE AND TRIREME_KOKKOS_LIBRARY)
    file(STRINGS "${TRIREME_KOKKOS_INCLUDE}/KokkosCore_config.h" line REGEX "^#define KOKKOS_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    math(EXPR major "${number} / 10000")
    math(EXPR minor "${number} / 100 % 100")
    math(EXPR patch "${number} % 100")
    foreach(backend SERIAL OPENMP THREADS CUDA HIP)
      file(STRINGS "${TRIREME_KOKKOS_INCLUDE}/KokkosCore_config.h" line REGEX "^#define KOKKOS_ENABLE_${backend}$")
      if(line)
        string(APPEND TRIREME_KOKKOS_BACKENDS " ${backend}")
      endif()
    endforeach()
    string(STRIP "${TRIREME_KOKKOS_BACKENDS}" TRIREME_KOKKOS_BACKENDS)
    if(NOT TARGET trireme_dep::Kokkos)
      add_library(trireme_dep::Kokkos INTERFACE IMPORTED GLOBAL)
      set_property(TARGET trireme_dep::Kokkos PROPERTY INTERFACE_LINK_LIBRARIES "${TRIREME_KOKKOS_LIBRARY}")
      trireme_system_include(trireme_dep::Kokkos "${TRIREME_KOKKOS_INCLUDE}")
    endif()
    trireme_note(Kokkos TRUE "${major}.${minor}.${patch} (${TRIREME_KOKKOS_BACKENDS})" "${TRIREME_KOKKOS_LIBRARY}"
                 NEED required)
  else()
    trireme_note(Kokkos FALSE "" "" NEED required PACKAGE libtrilinos-kokkos-dev)
  endif()
endif()

# ---- LibTorch ------------------------------------------------------------------------------------------------------
include("${CMAKE_CURRENT_LIST_DIR}/TriremeTorch.cmake")

# ---- small libraries -----------------------------------------------------------------------------------------------
trireme_find_config(fmt fmt TARGETS fmt::fmt NEED required PACKAGE libfmt-dev)
trireme_find_config(spdlog spdlog TARGETS spdlog::spdlog NEED required PACKAGE libspdlog-dev)
trireme_find_config(yaml yaml-cpp TARGETS yaml-cpp::yaml-cpp yaml-cpp NEED required PACKAGE libyaml-cpp-dev)
trireme_find_config(nlohmann nlohmann_json TARGETS nlohmann_json::nlohmann_json NEED required
                    PACKAGE nlohmann-json3-dev)
trireme_find_config(CLI11 CLI11 TARGETS CLI11::CLI11 NEED required PACKAGE libcli11-dev)
trireme_find_plain(hwloc HEADER hwloc.h LIBRARY hwloc PKGCONFIG hwloc NEED required PACKAGE libhwloc-dev)
trireme_find_plain(xxhash HEADER xxhash.h LIBRARY xxhash PKGCONFIG libxxhash NEED required PACKAGE libxxhash-dev)

trireme_find_plain(zlib HEADER zlib.h LIBRARY z PKGCONFIG zlib NEED required PACKAGE zlib1g-dev)
trireme_find_plain(zstd HEADER zstd.h LIBRARY zstd PKGCONFIG libzstd NEED required PACKAGE libzstd-dev)

# ---- io_uring ------------------------------------------------------------------------------------------------------
# Offload to disk uses it where the kernel has it too, else threads that read and write. AUTO: where liburing is found.
if(NOT DEFINED TRIREME_WITH_IO_URING)
  set(TRIREME_WITH_IO_URING AUTO)
endif()
if(TRIREME_WITH_IO_URING STREQUAL "AUTO")
  trireme_find_plain(uring HEADER liburing.h LIBRARY uring PKGCONFIG liburing NEED optional PACKAGE liburing-dev)
elseif(TRIREME_WITH_IO_URING)
  trireme_find_plain(uring HEADER liburing.h LIBRARY uring PKGCONFIG liburing NEED required PACKAGE liburing-dev)
endif()

# ---- threads, dlopen -----------------------------------------------------------------------------------------------
find_package(Threads QUIET)
trireme_wrap(threads Threads::Threads)
trireme_wrap(dl "${CMAKE_DL_LIBS}")

# ---- tests and benchmarks ------------------------------------------------------------------------------------------
if(TRIREME_BUILD_TESTS)
  find_package(GTest CONFIG QUIET)
  if(GTest_FOUND AND TARGET GTest::gmock)
    trireme_wrap(gtest GTest::gmock)
    set_property(TARGET trireme_dep::gtest APPEND PROPERTY INTERFACE_LINK_LIBRARIES GTest::gtest)
    trireme_note(GoogleTest TRUE "${GTest_VERSION}" "${GTest_DIR}" NEED tests)
  else()
    trireme_note(GoogleTest FALSE "" "" NEED tests PACKAGE "libgtest-dev libgmock-dev"
                 SETTING "or configure with -DTRIREME_BUILD_TESTS=OFF")
  endif()
endif()
if(TRIREME_BUILD_BENCHMARKS)
  find_package(benchmark CONFIG QUIET)
  if(benchmark_FOUND)
    trireme_wrap(benchmark benchmark::benchmark)
    trireme_note(Benchmark TRUE "${benchmark_VERSION}" "${benchmark_DIR}" NEED tests)
  else()
    trireme_note(Benchmark FALSE "" "" NEED tests PACKAGE libbenchmark-dev
                 SETTING "or configure with -DTRIREME_BUILD_BENCHMARKS=OFF")
  endif()
endif()

# ---- CUDA ----------------------------------------------------------------------------------------------------------
# The device backend (memory/cuda, comm/nccl) is built where a CUDA toolkit and NCCL are found together. ON demands them
# and a LibTorch with CUDA; OFF leaves them out; AUTO takes what there is.
if(TRIREME_WITH_CUDA OR TRIREME_NEEDS_DEVICE)
  set(device_need optional)
  if(TRIREME_CUDA_DEMANDED OR TRIREME_NEEDS_DEVICE)
    set(device_need required)
  endif()
  find_package(CUDAToolkit QUIET)
  find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT PATH_SUFFIXES include)
  find_library(TRIREME_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_ROOT PATH_SUFFIXES lib lib64)
  mark_as_advanced(TRIREME_NCCL_INCLUDE TRIREME_NCCL_LIBRARY)
  set(nccl_version "")
  if(TRIREME_NCCL_INCLUDE)
    file(STRINGS "${TRIREME_NCCL_INCLUDE}/nccl.h" lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" nccl_version "${lines}")
    string(REPLACE ";" "." nccl_version "${nccl_version}")
  endif()
  set(toolkit_found FALSE)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart)
    set(toolkit_found TRUE)
  endif()
  set(nccl_found FALSE)
  if(TRIREME_NCCL_INCLUDE AND TRIREME_NCCL_LIBRARY)
    set(nccl_found TRUE)
  endif()
  trireme_note("CUDA toolkit" ${toolkit_found} "${CUDAToolkit_VERSION}" "${CUDAToolkit_BIN_DIR}" NEED ${device_need}
               SETTING "TRIREME_WITH_CUDA=ON needs a CUDA toolkit (module load cuda, or CUDAToolkit_ROOT)")
  trireme_note(NCCL ${nccl_found} "${nccl_version}" "${TRIREME_NCCL_LIBRARY}" NEED ${device_need}
               SETTING "TRIREME_WITH_CUDA=ON needs nccl.h and libnccl (module load nccl, or CMAKE_PREFIX_PATH)")
  if(toolkit_found AND nccl_found AND NOT TARGET trireme_dep::nccl)
    trireme_wrap(cudart CUDA::cudart)
    # Loaded only by programs that use it: it is large.
    add_library(trireme_dep::nccl INTERFACE IMPORTED GLOBAL)
    set_property(TARGET trireme_dep::nccl PROPERTY INTERFACE_LINK_LIBRARIES
                 "-Wl,--push-state,--as-needed" "${TRIREME_NCCL_LIBRARY}" "-Wl,--pop-state")
    trireme_system_include(trireme_dep::nccl "${TRIREME_NCCL_INCLUDE}")
  endif()
endif()

# ---- the table -----------------------------------------------------------------------------------------------------
# Prints what was found, then refuses once with everything that is missing.
function(trireme_report_dependencies)
  get_property(rows GLOBAL PROPERTY TRIREME_DEPENDENCY_ROWS)
  set(table "\n  dependency    state    version                    where\n")
  foreach(row IN LISTS rows)
    string(REPLACE "|" ";" cells "${row}")
    list(GET cells 0 name)
    list(GET cells 1 found)
    list(GET cells 2 version)
    list(GET cells 3 where)
    if(found)
      set(state "found")
    else()
      set(state "MISSING")
    endif()
    foreach(cell name:14 state:9 version:27)
      string(REPLACE ":" ";" cell "${cell}")
      list(GET cell 0 variable)
      list(GET cell 1 width)
      string(LENGTH "${${variable}}" length)
      if(length LESS width)
        math(EXPR pad "${width} - ${length}")
        string(REPEAT " " ${pad} spaces)
        string(APPEND ${variable} "${spaces}")
      else()
        string(APPEND ${variable} " ")
      endif()
    endforeach()
    string(APPEND table "  ${name}${state}${version}${where}\n")
  endforeach()
  if(NOT TRIREME_QUIET_DEPENDENCIES)
    message(STATUS "Trireme's dependencies:${table}")
  endif()

  get_property(missing GLOBAL PROPERTY TRIREME_DEPENDENCY_MISSING)
  if(missing)
    get_property(packages GLOBAL PROPERTY TRIREME_DEPENDENCY_PACKAGES)
    string(REPLACE ";" "\n    " listed "${missing}")
    string(REPLACE ";" " " packages "${packages}")
    set(advice "\n  Elsewhere (modules, Spack): put their prefixes in CMAKE_PREFIX_PATH, and name a LibTorch folder in "
               "TRIREME_LIBTORCH.")
    string(CONCAT advice ${advice})
    if(packages)
      string(PREPEND advice "\n  On Debian or Ubuntu: apt-get install ${packages}")
    endif()
    message(FATAL_ERROR "Trireme cannot be built yet. Missing:\n    ${listed}\n"
            "  ./bootstrap deps installs or lists everything.${advice}")
  endif()
endfunction()
