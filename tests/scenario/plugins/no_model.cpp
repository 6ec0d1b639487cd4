// A shared library that registers nothing.
extern "C" int nothing_of_interest() { return 1; }
