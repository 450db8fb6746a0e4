// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include "espalier/base/error.hpp"

// The statement throws a ConfigError whose text contains `part`.
#define EXPECT_CONFIG_ERROR(statement, part)         \
  EXPECT_THAT([&] { static_cast<void>(statement); }, \
              testing::ThrowsMessage<::espalier::ConfigError>(testing::HasSubstr(part)))
