// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace espalier {

// Base of everything Espalier throws. what() reads "where: what is wrong, with the numbers; what was expected; remedy".
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The request, or a file, folder or environment it names, is unusable. The same text on every rank.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A peer was lost, a deadline passed or the transport failed. The world is unusable afterwards.
class CommError : public Error {
 public:
  using Error::Error;
};

// A defect in Espalier itself.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace espalier
