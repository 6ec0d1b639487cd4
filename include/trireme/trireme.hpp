// Everything that a program of one's own needs: the context, the accelerator, loaders.
#pragma once

#include "trireme/train/accelerator.hpp"
#include "trireme/train/context.hpp"
#include "trireme/train/loader.hpp"
#include "trireme/train/user_trainer.hpp"
