// Launches a kernel of the stand-in driver.
#pragma once

void StandinLaunch(const char* name, unsigned grid, unsigned block);
