// SPDX-License-Identifier: Apache-2.0
// LibTorch's headers include Gloo's, which its packages lack, while its libraries contain Gloo
// itself. These files declare just what c10d/ProcessGroupGloo.hpp needs to be read. Nothing but
// backends/c10d/gloo.cpp may see them.
#pragma once
