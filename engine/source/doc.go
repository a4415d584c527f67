package source

// This part of the package lists the branches of a local or remote repository, and fetches a pack from it: by
// file, https or ssh. New returns a Remote for an Address; Ask starts a Conversation, and Pack ends it.
//
// Each check has deadlines, and each answer a size limit. Failures are *Error values of a kind,
// such as ErrDenied, with a text that says what to do. No text has credentials, which are read from
// their files at every use.
