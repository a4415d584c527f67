// Package sops reads YAML files that SOPS (https://getsops.io) encrypted for age recipients:
// names are in the clear, values are not, and a MAC covers all values. Nothing is written,
// no program is started, and what was decrypted is in memory only.
//
//	Parse       a YAML document becomes a File: what has to be encrypted by its rules, is
//	FindKeys    the age identities of this machine and its user (identities.go)
//	Decrypt     all values of a File get their plaintext, or none does
//
// Findings name the entries of the file and never repeat a value, whether it was encrypted or not.
package sops
