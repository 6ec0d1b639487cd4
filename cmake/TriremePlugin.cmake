# trireme_add_plugin(mine mine.cpp ..): a shared library libmine.so with a model (include/trireme/model/plugin.hpp).
# It links LibTorch and no room: what it calls of trireme it finds in the program that loads it, once.

include_guard(GLOBAL)

function(trireme_add_plugin name)
  add_library(${name} MODULE ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:trireme::base,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(${name} PRIVATE trireme_dep::torch)
endfunction()
