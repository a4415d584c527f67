// Package site turns the files of a site into what a pass converges to (engine.Desired):
// it loads them with their secrets, checks the site with its policies, and checks the
// plans of a pass with them.
//
// A Loader does this for any tree and keeps what it has loaded. A Folder is a site on disk,
// for a person who works on it. Commits loads those of a repository, for an agent.
//
// A Sandbox has child processes try what comes from a repository, and evaluate the rules of a site: sandbox.go
// and the files beside it.
package site
