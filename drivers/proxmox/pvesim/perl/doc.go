// Package perl has values and failures as the programs of Proxmox VE have them, which
// are written in Perl: what counts as true, how a value is printed, how a list is split,
// and what a die or an exception becomes in an answer ([Fail], [BadParam], [Forbidden]).
package perl
