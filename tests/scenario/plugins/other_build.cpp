// A plug-in of some other trireme: it must be refused before anything else of it is called.
extern "C" const char* trireme_plugin_built_with() { return "trireme 0.0.9, LibTorch 2.1.0"; }
extern "C" void trireme_plugin_make(const void* /*request*/, void* /*model*/) { __builtin_trap(); }
