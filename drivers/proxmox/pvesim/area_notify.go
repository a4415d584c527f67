package pvesim

// areaNotify is notifications.
func areaNotify() area {
	return area{
		files: notificationFiles(),
		calls: notificationCalls(),
		begin: (*world).restoreBuiltin,
	}
}
