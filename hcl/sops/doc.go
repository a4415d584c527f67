// Package sops reads YAML files encrypted by SOPS (https://getsops.io) for age recipients: names
// are not encrypted, values are, and a MAC covers all values. The package writes nothing, runs no
// program, and keeps plaintext in memory only.
//
//	Parse       a YAML document becomes a File: what has to be encrypted by its rules, is
//	FindKeys    the age identities of this machine and its user (identities.go)
//	Decrypt     all values of a File get their plaintext, or none does
//
// Findings name the entries of the file and never repeat a value, whether it was encrypted or not.
package sops
