// Package content finds out what is in a file that is uploaded or downloaded, and keeps
// nothing else of it: size, checksums, the format of a disk image, and the system in the
// archive of a root file system. A [Page] is such a file in the simulated web.
package content
