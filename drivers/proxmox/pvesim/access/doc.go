// Package access is the API for users, tokens, groups, roles, realms, the access list,
// tickets and pools. What they permit is decided in package core.
package access
