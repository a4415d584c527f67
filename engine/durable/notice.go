package durable

import (
	"context"

	"github.com/fsnotify/fsnotify"
)

// Notice sends after a file in one of some folders was written, replaced, created or removed, or its mode changed, until ctx
// ends. Several changes may be one notice. It misses changes of a file that a link elsewhere leads to, those in a folder that is
// not there yet, and all where the kernel allows no more watches, so check once in a while as well.
func Notice(ctx context.Context, folders ...string) <-chan struct{} {
	notices := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return notices
	}
	for _, folder := range folders {
		_ = w.Add(folder)
	}
	context.AfterFunc(ctx, func() { _ = w.Close() })
	go func() {
		for {
			select {
			case _, open := <-w.Events:
				if !open {
					return
				}
			case _, open := <-w.Errors: // such as a full queue: something may have changed
				if !open {
					return
				}
			}
			select {
			case notices <- struct{}{}:
			default:
			}
		}
	}()
	return notices
}
