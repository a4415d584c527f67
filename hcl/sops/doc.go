// Package sops reads YAML files encrypted by SOPS (https://getsops.io) for age recipients: names are not encrypted,
// values are, and a MAC covers all values. The package writes nothing, runs no program, and keeps plaintext in
// memory only.
//
//	Parse       parses a YAML document into a File, and checks that its rules are followed
//	FindKeys    finds the age identities of this machine and its user (identities.go)
//	Decrypt     decrypts all values of a File, or none
//
// Findings name the entries of the file and never repeat a value, whether it was encrypted or not.
package sops
