//! SCIRON: a stateless firewall of NIC OS filters.

#![forbid(unsafe_code)]
