// Package site turns the files of a site into the input of a pass (engine.Desired): it loads them with their
// secrets, and checks the site and the plans of a pass with its policies.
//
// A Loader does this for any tree and caches what it has loaded. A Folder is a site on disk, for a person who works
// on it. Commits loads those of a repository, for an agent.
//
// A Sandbox evaluates untrusted content, and the rules of a site, in child processes: see sandbox.go.
package site
